// Lille 130M: Llama whose neighbouring features rotate together, under other names.
import { z } from "zod";
import { family } from "../family.ts";

export const lille130m = family({
  config: { tie_word_embeddings: z.boolean().default(true) },
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
    "transformer.tok_embeddings.": "model.embed_tokens.",
    "transformer.": "model.",
    ".attention.norm.": ".input_layernorm.",
    ".attention.out_proj.": ".self_attn.o_proj.",
    ".attention.": ".self_attn.",
    ".feed_forward.norm.": ".post_attention_layernorm.",
    ".feed_forward.": ".mlp.",
  },
  design: (config) => ({
    rotatesNeighbours: true,
    // Eight thirds of it, to the nearest multiple of 256.
    hidden: 256 * Math.round(Math.floor((8 * config.hidden_size) / 3) / 256),
  }),
});
