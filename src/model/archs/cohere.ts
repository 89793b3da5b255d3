// Command R: attention and MLP beside each other behind one layer norm, and neighbours that rotate together.
import { flag, type Keys, positive, real } from "../config.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";
import { headwiseNorms } from "../head-changes.ts";
import { halves } from "../qkv.ts";
import type { Weights } from "../weights.ts";

export const cohereConfig = {
  rms_norm_eps: positive.default(1e-5),
  rope_theta: positive.default(8_000_000),
  logit_scale: real.default(0.0625),
  use_qk_norm: flag.default(false),
};

/** Where it has both lengths, the other one is not what it was trained with. */
export const cohereKeys: Keys = {
  rms_norm_eps: "layer_norm_eps",
  max_position_embeddings: "model_max_length",
};

export const cohere = family({
  config: cohereConfig,
  keys: cohereKeys,
  design: (config, weights) => ({
    ...cohereDesign(config),
    parts: (name, sizes) => {
      if (!config.use_qk_norm) return {};
      const [q, k] = [`${name}.q_norm`, `${name}.k_norm`];
      arrangeNorms(weights, q, sizes.heads, sizes.headDim);
      arrangeNorms(weights, k, sizes.kvHeads, sizes.headDim);
      return { project: headwiseNorms(weights, name, sizes, [q, k], config.rms_norm_eps) };
    },
  }),
});

export function cohereDesign({ logit_scale }: ConfigOf<typeof cohereConfig>): Design {
  return {
    config: { tie_word_embeddings: true },
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    rotatesNeighbours: true,
    logitScale: logit_scale,
  };
}

/** Norms of heads in the order of their features. */
function arrangeNorms(weights: Weights, name: string, heads: number, headDim: number): void {
  weights.reshape(`${name}.weight`, [heads, headDim], [heads * headDim]);
  weights.reorder(name, halves(heads, headDim, headDim));
  weights.reshape(`${name}.weight`, [heads * headDim], [heads, headDim]);
}
