// Baichuan M1: keys and values are mixed with the previous token's, and layers with a window have other head counts.
import { z } from "zod";
import { add, concatenate, reshape, slice, swapAxes, zeros } from "../../mlx/ops.ts";
import { count, headsOf, integer } from "../checkpoint/config.ts";
import { makeRope } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import { type AttentionSizes, headFeatures, kvFeatures, ownHeads } from "../layers/layers.ts";
import { normedRows } from "../layers/norm-head.ts";
import type { Weights } from "../weights/weights.ts";

export const baichuanM1 = family({
  config: {
    sliding_window: count,
    sliding_window_layers: z.array(integer),
    conv_window: z.literal(2),
    num_swa_attention_heads: count.nullish(),
    num_swa_key_value_heads: count.nullish(),
    tie_word_embeddings: z.literal(false).default(false),
  },
  design: ({ hidden_size: dims, sliding_window_layers: near, ...config }, weights) => ({
    head: (head) => normedRows(weights, head, dims),
    mix: (name, layer, states) => {
      const isNear = near.includes(layer);
      const { num_swa_attention_heads, num_swa_key_value_heads } = config;
      const all = headsOf({
        hidden_size: dims,
        head_dim: config.head_dim,
        num_attention_heads: (isNear && num_swa_attention_heads) || config.num_attention_heads,
        num_key_value_heads: (isNear && num_swa_key_value_heads) || config.num_key_value_heads,
      });
      const sizes = ownHeads(weights, name, { dims, ...all });
      const { heads, kvHeads, headDim } = sizes;
      const [queries, keys] = [heads * headDim, kvHeads * headDim];
      const [ownQueries, ownKeys] = [headFeatures(sizes), kvFeatures(sizes)];
      const window = isNear ? config.sliding_window : undefined;
      const project = weights.linear(`${name}.W_pack`, dims, [ownQueries, ownKeys, ownKeys]);
      const oProj = weights.linear(`${name}.o_proj`, ownQueries, dims);
      const convolved = { weight: tapsOf(weights, name, sizes), column: queries };
      const inputs = states.slot(1, 2 * keys);
      const state = states.kv({ ...sizes, window });
      const rope = makeRope(weights, { dims: headDim, base: config.rope_theta });
      const options = { scale: headDim ** -0.5, window };
      return (x, step, { norm, residual } = {}) => {
        const raw = project(x, { norm });
        const mixed = step.convolve(inputs, raw, convolved); // keys and values
        const qkv = concatenate([slice(raw, 1, 0, queries), mixed], -1);
        return oProj(step.attend(state, qkv, { ...sizes, rope }, options), { residual });
      };
    },
  }),
});

/** Loads the taps of the convolution over keys and values: two per KV head, repeated per feature -> (2, channels). */
function tapsOf(weights: Weights, name: string, sizes: AttentionSizes) {
  const { kvHeads, headDim } = sizes;
  const [keys, values] = ["conv_k", "conv_v"].map((part) =>
    weights.part(`${name}.${part}`, kvFeatures(sizes, 1), [2], "float32"),
  );
  return weights.arrays.computed(() => {
    const byHead = swapAxes(concatenate([keys!, values!], 0), 0, 1);
    const spread = add(reshape(byHead, [2, 2 * kvHeads, 1]), zeros([1, 1, headDim]));
    return reshape(spread, [2, 2 * kvHeads * headDim]);
  });
}
