// Qwen 3, its dense models: queries and keys are normed, head by head.

import type { Linear } from "../../device/device.ts";
import { headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
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
  makeMlp: (name: string, layer: number) => Linear,
): Model {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const sizes = { dims, ...headsOf(config) };
  const { headDim } = sizes;
  const rope = makeRope(weights, ropeOptions(config, headDim));
  return decoder(config, weights, (name, layer, states) =>
    preNormBlock(
      attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        qNorm: rmsNorm(weights, `${name}.self_attn.q_norm`, headDim, eps),
        kNorm: rmsNorm(weights, `${name}.self_attn.k_norm`, headDim, eps),
        attention: {
          scale: headDim ** -0.5,
          window: windowOf(config, layer, (at) => qwenSlides(config, at)),
        },
      }),
      makeMlp(`${name}.mlp`, layer),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
    ),
  );
}
