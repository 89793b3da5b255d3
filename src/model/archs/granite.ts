// Granite 3: Llama with a factor on the embedding, on each branch, on the scores and on the logits.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, divide, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  embedding_multiplier: z.number().default(1),
  residual_multiplier: z.number().default(1),
  attention_multiplier: z.number().default(1),
  logits_scaling: z.number().default(1),
});

export function granite(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const { embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling } =
    parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const scaled = (x: MlxArray, residual: MlxArray) =>
    add(residual, multiply(x, residual_multiplier));
  return decoder(
    parsed,
    weights,
    (name, _, states) => {
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        attention: { scale: attention_multiplier },
      });
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
      return preNormBlock(
        (x, step, { norm, residual } = {}) => scaled(attend(x, step, { norm }), residual!),
        (x, { norm, residual } = {}) => scaled(mlp(x, { norm }), residual!),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    {
      afterEmbedding: (h) => multiply(h, embedding_multiplier),
      afterLogits: (logits) => divide(logits, logits_scaling),
    },
  );
}
