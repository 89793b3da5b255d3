// GPT NeoX and Pythia: layer norms, attention and MLP in parallel; each head's query, key and value are side by side.

import { flag, word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";
import { arrangeGroups } from "../layers/qkv.ts";

export const gptNeox = family({
  config: {
    use_parallel_residual: flag.default(true),
    hidden_act: word.default("gelu"),
    /** Whether the QKV matrix has all query rows, then all key rows, then all value rows, as in GGUF files. */
    rows_in_order: flag.default(false),
  },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.25 },
  keys: {
    rms_norm_eps: "layer_norm_eps",
    partial_rotary_factor: "rotary_pct",
    rope_theta: "rotary_emb_base",
  },
  leftOut: /\.attention\.(masked_)?bias$|\.rotary_emb\.inv_freq$/,
  design: ({ intermediate_size, hidden_size, rows_in_order, ...config }, weights) => ({
    isParallel: config.use_parallel_residual,
    isLayerNorm: true,
    hidden: intermediate_size > 1 ? intermediate_size : 4 * hidden_size,
    activation: activationOf(config.hidden_act, "hidden_act"),
    arrange: (name, sizes) => {
      if (!rows_in_order) arrangeGroups(weights.matrices, name, sizes);
    },
  }),
});
