// DBRX: layer norms without biases, clipped queries, keys and values, and experts in every layer.
import { z } from "zod";
import { count, positive } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { splitExpertRows } from "../layers/expert-layouts.ts";

export const dbrx = family({
  config: {
    ...expertKeys,
    attn_config: z.looseObject({
      kv_n_heads: count,
      clip_qkv: positive.nullish(),
      rope_theta: positive.default(10_000),
    }),
    ffn_config: z.looseObject({ ffn_hidden_size: count, moe_num_experts: count, moe_top_k: count }),
  },
  defaults: { max_position_embeddings: 2048 },
  keys: {
    hidden_size: "d_model",
    num_hidden_layers: "n_layers",
    num_attention_heads: "n_heads",
    max_position_embeddings: "max_seq_len",
  },
  names: {
    ".norm_attn_norm.norm_1.": ".input_layernorm.",
    ".norm_attn_norm.norm_2.": ".post_attention_layernorm.",
    ".norm_attn_norm.attn.Wqkv.": ".self_attn.qkv_proj.",
    ".norm_attn_norm.self_attn.": ".self_attn.",
    ".ffn.": ".mlp.",
    ".mlp.router.layer.": ".mlp.gate.",
  },
  design: ({ attn_config, ffn_config, hidden_size: dims, ...config }, weights) => {
    const { ffn_hidden_size: hidden, moe_num_experts: experts, moe_top_k: each } = ffn_config;
    return {
      config: {
        num_key_value_heads: attn_config.kv_n_heads,
        rope_theta: attn_config.rope_theta,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: false,
      },
      isLayerNorm: true,
      qkvLimit: attn_config.clip_qkv,
      arrangeMlp: (name) => splitExpertRows(weights.stored, name, { experts, dims, hidden }),
      experts: expertsOf(config, { count: experts, each, hidden }),
    };
  },
});
