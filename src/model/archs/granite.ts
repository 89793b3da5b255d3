// Granite 3: Llama with a factor on the embedding, on each branch, on the scores and on the logits.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, divide, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { type DecoderConfig, decoder } from "../decoder.ts";
import { type AttentionBlock, attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

export const GraniteConfig = BaseConfig.extend({
  embedding_multiplier: z.number().default(1),
  residual_multiplier: z.number().default(1),
  attention_multiplier: z.number().default(1),
  logits_scaling: z.number().default(1),
});
type Factors = Pick<
  z.infer<typeof GraniteConfig>,
  "embedding_multiplier" | "residual_multiplier" | "logits_scaling"
>;

export function granite(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(GraniteConfig, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const attention = { scale: parsed.attention_multiplier };
  return graniteDecoder(parsed, weights, (name, _, states) => ({
    mix: attentionBlock(weights, `${name}.self_attn`, states, sizes, { rope, attention }),
    mlp: gatedMlp(weights, `${name}.mlp`, dims, intermediate_size),
  }));
}

export function graniteDecoder(
  config: DecoderConfig & Factors,
  weights: Weights,
  makeLayer: (
    name: string,
    layer: number,
    states: LayerStates,
  ) => { mix: AttentionBlock; mlp: Linear },
): Model {
  const { hidden_size: dims, rms_norm_eps: eps, residual_multiplier } = config;
  const scaled = (x: MlxArray, residual: MlxArray) =>
    add(residual, multiply(x, residual_multiplier));
  return decoder(
    config,
    weights,
    (name, layer, states) => {
      const { mix, mlp } = makeLayer(name, layer, states);
      return preNormBlock(
        (x, step, { norm, residual } = {}) => scaled(mix(x, step, { norm }), residual!),
        (x, { norm, residual } = {}) => scaled(mlp(x, { norm }), residual!),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    {
      afterEmbedding: (h) => multiply(h, config.embedding_multiplier),
      afterLogits: (logits) => divide(logits, config.logits_scaling),
    },
  );
}
