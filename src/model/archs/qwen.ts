// Qwen 1 and 1.8B, 7B, 14B, 72B of its time: one matrix for queries, keys and values.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** What it was trained with. Beyond that its authors change RoPE and the scores, here it ends. */
  max_position_embeddings: z.int().positive().default(8192),
});

export function qwen(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, {
    head_dim: "kv_channels",
    rms_norm_eps: "layer_norm_epsilon",
    rope_theta: "rotary_emb_base",
    max_position_embeddings: "seq_length",
  });
  const { hidden_size: dims, intermediate_size } = parsed;
  weights.renameParts({
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
    "transformer.ln_f.": "model.norm.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_attn.": ".self_attn.qkv_proj.",
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.w1.": ".mlp.up_proj.",
    ".mlp.w2.": ".mlp.gate_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
  });
  // The size is that of both halves.
  const mlp = (name: string) => gatedMlp(weights, name, dims, intermediate_size / 2);
  return transformer(parsed, weights, { mlp });
}
