// Command R: attention and MLP beside each other behind one layer norm, and neighbours that rotate together.
import { z } from "zod";
import { multiply } from "../../mlx/ops.ts";
import { BaseConfig, type Keys, parseConfig } from "../config.ts";
import { normedHeads } from "../head-changes.ts";
import { type AttentionSizes, layerNorm, projection } from "../layers.ts";
import type { Model } from "../model.ts";
import { halves } from "../qkv.ts";
import { type Design, transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export const CohereConfig = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  rope_theta: z.number().positive().default(8_000_000),
  logit_scale: z.number().default(0.0625),
  use_qk_norm: z.boolean().default(false),
});
export type CohereConfig = z.infer<typeof CohereConfig>;

/** Where it has both lengths, the other one is not what it was trained with. */
export const cohereKeys: Keys = {
  rms_norm_eps: "layer_norm_eps",
  max_position_embeddings: "model_max_length",
};

export function cohere(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(CohereConfig, config, cohereKeys);
  return cohereDecoder(parsed, weights, {
    parts: parsed.use_qk_norm
      ? (name, sizes) => ({ project: normedProjection(weights, name, sizes, parsed.rms_norm_eps) })
      : undefined,
  });
}

export function cohereDecoder(config: CohereConfig, weights: Weights, design: Design): Model {
  const { hidden_size: dims, rms_norm_eps, logit_scale } = config;
  return transformer({ ...config, tie_word_embeddings: true }, weights, {
    isParallel: true,
    norms: { attention: "input_layernorm" },
    makeNorm: (name) => layerNorm(weights, name, dims, rms_norm_eps),
    rotatesNeighbours: true,
    afterLogits: (logits) => multiply(logits, logit_scale),
    ...design,
  });
}

/** A layer norm over each head, with weights of its own for each. */
function normedProjection(weights: Weights, name: string, sizes: AttentionSizes, eps: number) {
  const { heads, kvHeads, headDim } = sizes;
  const weightOf = (part: string, count: number) => {
    const norm = `${name}.${part}`;
    weights.reshape(`${norm}.weight`, [count, headDim], [count * headDim]);
    weights.reorder(norm, halves(count, headDim, headDim));
    weights.reshape(`${norm}.weight`, [count * headDim], [count, headDim]);
    return weights.tensor(`${norm}.weight`, [count, headDim]);
  };
  const own = { q: weightOf("q_norm", heads), k: weightOf("k_norm", kvHeads) };
  return normedHeads(projection(weights, name, sizes), sizes, own, eps);
}
