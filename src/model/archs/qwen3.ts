// Qwen 3, its dense models: queries and keys are normed, head by head.
import { parseConfig } from "../config.ts";
import type { DecoderOptions } from "../decoder.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { attentionLayers, type MakeMlp, preNormDecoder } from "../pre-norm-decoder.ts";
import type { Weights } from "../weights.ts";
import { QwenConfig, qwenSlides } from "./qwen2.ts";

export function qwen3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(QwenConfig, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  return qwen3Decoder(parsed, weights, (name) => gatedMlp(weights, name, dims, intermediate_size));
}

export function qwen3Decoder(
  config: QwenConfig,
  weights: Weights,
  makeMlp: MakeMlp,
  options?: DecoderOptions,
): Model {
  const slides = (layer: number) => qwenSlides(config, layer);
  const makeAttention = attentionLayers(config, weights, { norms: "heads", slides });
  return preNormDecoder(config, weights, makeAttention, makeMlp, options);
}
