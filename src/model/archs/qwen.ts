// Qwen 1 (1.8B, 7B, 14B, 72B): one matrix for queries, keys and values.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const qwen = family({
  config: {
    /** Trained length, which limits sequences: the authors' method for longer ones is not supported. */
    max_position_embeddings: count.default(8192),
  },
  keys: {
    head_dim: "kv_channels",
    rms_norm_eps: "layer_norm_epsilon",
    rope_theta: "rotary_emb_base",
    max_position_embeddings: "seq_length",
  },
  names: { ".mlp.w1.": ".mlp.up_proj.", ".mlp.w2.": ".mlp.gate_proj." },
  // Halves the configured width, which counts gate and up together.
  design: (config) => ({ hidden: config.intermediate_size / 2 }),
});
