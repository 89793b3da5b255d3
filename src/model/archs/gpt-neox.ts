// GPT NeoX and Pythia: layer norms, attention and MLP beside each other, a head's query, key and value side by side.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { positive, share } from "../config.ts";
import { family } from "../family.ts";
import { arrangeGroups } from "../qkv.ts";

export const gptNeox = family({
  config: {
    rms_norm_eps: positive.default(1e-5),
    partial_rotary_factor: share.default(0.25),
    use_parallel_residual: z.boolean().default(true),
    hidden_act: z.string().default("gelu"),
    /** GGUF files have all queries, then all keys, then all values. */
    rows_in_order: z.boolean().default(false),
  },
  keys: {
    rms_norm_eps: "layer_norm_eps",
    partial_rotary_factor: "rotary_pct",
    rope_theta: "rotary_emb_base",
  },
  leftOut: /\.attention\.(masked_)?bias$|\.rotary_emb\.inv_freq$/,
  names: {
    "^gpt_neox.": "model.",
    "^embed_out.": "lm_head.",
    "model.h.": "model.layers.",
    "model.embed_in.": "model.embed_tokens.",
    "model.embed_out.": "lm_head.",
    "model.final_layer_norm.": "model.norm.",
    ".attention.query_key_value.": ".self_attn.qkv_proj.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".dense_h_to_4h.": ".up_proj.",
    ".dense_4h_to_h.": ".down_proj.",
  },
  design: ({ intermediate_size, hidden_size, rows_in_order, ...config }, weights) => ({
    isParallel: config.use_parallel_residual,
    isLayerNorm: true,
    hidden: intermediate_size > 1 ? intermediate_size : 4 * hidden_size,
    activation: activationOf(config.hidden_act, "hidden_act"),
    arrange: (name, sizes) => {
      if (!rows_in_order) arrangeGroups(weights, name, sizes);
    },
  }),
});
