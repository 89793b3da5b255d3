// Qwen 1 and 1.8B, 7B, 14B, 72B of its time: one matrix for queries, keys and values.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const qwen = family({
  config: {
    /** What it was trained with. Beyond that its authors change RoPE and the scores, here it ends. */
    max_position_embeddings: count.default(8192),
  },
  keys: {
    head_dim: "kv_channels",
    rms_norm_eps: "layer_norm_epsilon",
    rope_theta: "rotary_emb_base",
    max_position_embeddings: "seq_length",
  },
  names: { ".mlp.w1.": ".mlp.up_proj.", ".mlp.w2.": ".mlp.gate_proj." },
  // The size is that of both halves.
  design: (config) => ({ hidden: config.intermediate_size / 2 }),
});
