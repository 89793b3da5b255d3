// OpenELM: heads and width grow from layer to layer.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { count, flag, positive } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const openelm = family({
  config: {
    head_dim: count,
    /** Default for the common schema, which requires this key; num_query_heads replaces it. */
    num_attention_heads: count.default(1),
    num_query_heads: z.array(count),
    num_kv_heads: z.array(count),
    ffn_multipliers: z.array(positive),
    ffn_dim_divisor: count,
    normalize_qk_projections: flag.default(true),
  },
  keys: {
    hidden_size: "model_dim",
    num_hidden_layers: "num_transformer_layers",
    max_position_embeddings: "max_context_length",
    rope_theta: "rope_freq_constant",
    tie_word_embeddings: "share_input_output_layers",
  },
  names: {
    ".attn.": ".self_attn.",
    ".attn_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".ffn.proj_1.": ".mlp.gate_up_proj.",
    ".ffn.proj_2.": ".mlp.down_proj.",
  },
  design: (config) => {
    const { num_query_heads, num_kv_heads, ffn_multipliers, num_hidden_layers: layers } = config;
    for (const [key, list] of Object.entries({ num_query_heads, num_kv_heads, ffn_multipliers })) {
      if (list.length === layers) continue;
      throw new LoadError(`config.json: ${key}: expected ${layers} numbers`);
    }
    return {
      heads: (layer) => ({
        heads: num_query_heads[layer]!,
        kvHeads: num_kv_heads[layer]!,
        headDim: config.head_dim,
      }),
      headNorms: config.normalize_qk_projections ? ["q_norm", "k_norm"] : undefined,
      hidden: (layer) =>
        nearestMultiple(ffn_multipliers[layer]! * config.hidden_size, config.ffn_dim_divisor),
    };
  },
});

/** Returns the multiple of `divisor` nearest to `size`, but at least 0.9 * size. */
function nearestMultiple(size: number, divisor: number): number {
  const nearest = Math.max(divisor, Math.floor((size + divisor / 2) / divisor) * divisor);
  return nearest < 0.9 * size ? nearest + divisor : nearest;
}
