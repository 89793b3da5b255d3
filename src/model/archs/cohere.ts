// Command R: attention and MLP beside each other behind one layer norm, and neighbours that rotate together.
import { flag, real } from "../config.ts";
import { family } from "../family.ts";
import { headwiseNorms } from "../head-changes.ts";
import { plainLayerNorm } from "../layers.ts";
import { halves } from "../qkv.ts";
import type { Weights } from "../weights.ts";

export const cohere = family({
  config: { logit_scale: real.default(0.0625), use_qk_norm: flag.default(false) },
  defaults: { rms_norm_eps: 1e-5, rope_theta: 8_000_000 },
  // Where it has both lengths, the other one is not what it was trained with.
  keys: { rms_norm_eps: "layer_norm_eps", max_position_embeddings: "model_max_length" },
  design: ({ logit_scale, use_qk_norm, rms_norm_eps }, weights) => ({
    config: { tie_word_embeddings: true },
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    rotatesNeighbours: true,
    parts: (name, sizes) => {
      if (!use_qk_norm) return {};
      const norm = plainLayerNorm(rms_norm_eps);
      const [q, k] = [`${name}.q_norm`, `${name}.k_norm`];
      arrangeNorms(weights, q, sizes.heads, sizes.headDim);
      arrangeNorms(weights, k, sizes.kvHeads, sizes.headDim);
      return { project: headwiseNorms(weights, name, sizes, [`${q}.weight`, `${k}.weight`], norm) };
    },
    logitScale: logit_scale,
  }),
});

/** Norms of heads in the order of their features. */
function arrangeNorms(weights: Weights, name: string, heads: number, headDim: number): void {
  weights.reshape(`${name}.weight`, [heads, headDim], [heads * headDim]);
  weights.reorder(name, halves(heads, headDim, headDim));
  weights.reshape(`${name}.weight`, [heads * headDim], [heads, headDim]);
}
