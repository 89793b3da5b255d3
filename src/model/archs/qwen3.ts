// Qwen 3, its dense models: queries and keys are normed, head by head.
import type { Linear } from "../../device/device.ts";
import { parseConfig } from "../config.ts";
import type { DecoderOptions } from "../decoder.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { QwenConfig, qwenSlides } from "./qwen2.ts";

export function qwen3(config: unknown, weights: Weights): Model {
  return qwen3Decoder(parseConfig(QwenConfig, config), weights);
}

export function qwen3Decoder(
  config: QwenConfig,
  weights: Weights,
  mlp?: (name: string, layer: number) => Linear,
  options?: DecoderOptions,
): Model {
  return transformer(config, weights, {
    headNorms: ["q_norm", "k_norm"],
    slides: (layer) => qwenSlides(config, layer),
    mlp,
    ...options,
  });
}
