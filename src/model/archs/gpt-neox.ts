// GPT NeoX and Pythia: layer norms, attention and MLP beside each other, a head's query, key and value side by side.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { arrangeGroups } from "../qkv.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  partial_rotary_factor: z.number().positive().max(1).default(0.25),
  use_parallel_residual: z.boolean().default(true),
  hidden_act: z.string().default("gelu"),
  /** GGUF files have all queries, then all keys, then all values. */
  rows_in_order: z.boolean().default(false),
});

export function gptNeox(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, {
    rms_norm_eps: "layer_norm_eps",
    partial_rotary_factor: "rotary_pct",
    rope_theta: "rotary_emb_base",
  });
  const { hidden_size: dims, rms_norm_eps: eps } = parsed;
  weights.leaveOut(/\.attention\.(masked_)?bias$|\.rotary_emb\.inv_freq$/);
  weights.rename({ "gpt_neox.": "model.", "embed_out.": "lm_head." });
  weights.renameParts({
    "model.h.": "model.layers.",
    "model.embed_in.": "model.embed_tokens.",
    "model.embed_out.": "lm_head.",
    "model.final_layer_norm.": "model.norm.",
    ".attention.query_key_value.": ".self_attn.qkv_proj.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".dense_h_to_4h.": ".up_proj.",
    ".dense_4h_to_h.": ".down_proj.",
  });
  const activation = activationOf(parsed.hidden_act, "hidden_act");
  const hidden = parsed.intermediate_size > 1 ? parsed.intermediate_size : 4 * dims;
  return transformer(parsed, weights, {
    isParallel: parsed.use_parallel_residual,
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    mlp: (name) => plainMlp(weights, name, dims, hidden, activation),
    arrange: (name, sizes) => {
      if (!parsed.rows_in_order) arrangeGroups(weights, name, sizes);
    },
  });
}
