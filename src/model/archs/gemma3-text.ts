// Gemma 3's text decoder: five layers with a window, then one without, with separate RoPE; norms around attention and
// MLP and on queries and keys.
import type { MlxArray } from "../../mlx/array.ts";
import { add, astype, clip } from "../../mlx/ops.ts";
import { count, positive } from "../checkpoint/config.ts";
import { normsAround } from "../design/design.ts";
import { family } from "../design/family.ts";

/** Configuration keys of models with separate RoPE for layers with a window. */
export const localRopeKeys = {
  max_position_embeddings: count.default(131_072),
  rope_theta: positive.default(1_000_000),
  rope_local_base_freq: positive.default(10_000),
};

export const gemma3Text = family({
  config: {
    ...localRopeKeys,
    query_pre_attn_scalar: positive.default(256),
    /** Every n-th layer has no window. */
    sliding_window_pattern: count.default(6),
  },
  defaults: {
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 256,
    vocab_size: 262_208,
    sliding_window: 512,
  },
  design: (config) => ({
    norms: normsAround,
    normOffset: 1,
    headNorms: ["q_norm", "k_norm"],
    slides: (layer) => (layer + 1) % config.sliding_window_pattern !== 0,
    localRopeBase: config.rope_local_base_freq,
    attention: { scale: config.query_pre_attn_scalar ** -0.5 },
    gating: "geglu",
    sum: addWithin,
    embeddingScale: toNearestBfloat16(config.hidden_size ** 0.5),
  }),
});

/** Clips float16 sums to float16's range, which they may exceed because the model was trained in bfloat16. */
function addWithin(x: MlxArray, y: MlxArray): MlxArray {
  if (x.dtype !== "float16") return add(x, y);
  const exact = add(astype(x, "float32"), astype(y, "float32"));
  return astype(clip(exact, -65_504, 65_504), "float16");
}

/** Rounds the embedding's factor to bfloat16, as in training, whatever the model's dtype. */
function toNearestBfloat16(value: number): number {
  const unit = 2 ** (Math.floor(Math.log2(value)) - 7);
  return Math.round(value / unit) * unit;
}
