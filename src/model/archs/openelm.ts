// OpenELM: layers that grow towards the end, in heads and in width.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
  head_dim: count,
  /** Those of layers are listed. */
  num_attention_heads: count.default(1),
  num_query_heads: z.array(count),
  num_kv_heads: z.array(count),
  ffn_multipliers: z.array(z.number().positive()),
  ffn_dim_divisor: count,
  normalize_qk_projections: z.boolean().default(true),
});

export function openelm(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, {
    hidden_size: "model_dim",
    num_hidden_layers: "num_transformer_layers",
    max_position_embeddings: "max_context_length",
    rope_theta: "rope_freq_constant",
    tie_word_embeddings: "share_input_output_layers",
  });
  const { hidden_size: dims, num_hidden_layers: layers, head_dim: headDim } = parsed;
  for (const key of ["num_query_heads", "num_kv_heads", "ffn_multipliers"] as const) {
    if (parsed[key].length === layers) continue;
    throw new LoadError(`config.json: ${key}: expected ${layers} numbers`);
  }
  weights.renameParts({
    "transformer.token_embeddings.": "model.embed_tokens.",
    "transformer.": "model.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".attn.": ".self_attn.",
    ".attn_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".ffn.proj_1.": ".mlp.gate_up_proj.",
    ".ffn.proj_2.": ".mlp.down_proj.",
  });
  return transformer(parsed, weights, {
    heads: (layer) => ({
      heads: parsed.num_query_heads[layer]!,
      kvHeads: parsed.num_kv_heads[layer]!,
      headDim,
    }),
    headNorms: parsed.normalize_qk_projections ? ["q_norm", "k_norm"] : undefined,
    mlp: (name, layer) => {
      const wanted = parsed.ffn_multipliers[layer]! * dims;
      return gatedMlp(weights, name, dims, nearestMultiple(wanted, parsed.ffn_dim_divisor));
    },
  });
}

/** But not below nine tenths of it. */
function nearestMultiple(size: number, divisor: number): number {
  const nearest = Math.max(divisor, Math.floor((size + divisor / 2) / divisor) * divisor);
  return nearest < 0.9 * size ? nearest + divisor : nearest;
}
