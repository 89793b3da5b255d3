// Lille 130M: Llama with other tensor names, whose neighbouring features rotate together.
import { flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const lille130m = family({
  config: { tie_word_embeddings: flag.default(true) },
  keys: {
    hidden_size: "n_embd",
    num_hidden_layers: "n_layer",
    num_attention_heads: "n_head",
    num_key_value_heads: "n_kv_heads",
    max_position_embeddings: "block_size",
    rms_norm_eps: "layer_norm_eps",
  },
  leftOut: /rotary_emb/,
  names: {
    ".self_attn.norm.": ".input_layernorm.",
    ".feed_forward.norm.": ".post_attention_layernorm.",
    ".feed_forward.": ".mlp.",
  },
  design: (config) => ({
    rotatesNeighbours: true,
    // The width is 8 / 3 of the hidden size, rounded to the nearest multiple of 256.
    hidden: 256 * Math.round(Math.floor((8 * config.hidden_size) / 3) / 256),
  }),
});
