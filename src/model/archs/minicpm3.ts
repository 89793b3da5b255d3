// MiniCPM 3: MiniCPM with latent attention, in which features that rotate together are half of them apart.
import { z } from "zod";
import type { RowRun } from "../arrangement.ts";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { deepseekAttention, LATENT_EPS } from "./deepseek-v2.ts";
import { MinicpmConfig, minicpmFactors } from "./minicpm.ts";

const count = z.int().positive();

const Config = MinicpmConfig.extend({
  q_lora_rank: count,
  kv_lora_rank: count,
  qk_rope_head_dim: count,
  qk_nope_head_dim: count,
  v_head_dim: count.nullish(),
});

export function minicpm3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, num_attention_heads: heads, q_lora_rank, kv_lora_rank } = parsed;
  const { qk_rope_head_dim: rotary, qk_nope_head_dim: plain } = parsed;
  const sizes = { ...parsed, v_head_dim: parsed.v_head_dim ?? dims / heads };
  const attention = deepseekAttention(sizes, weights, LATENT_EPS);
  return transformer(parsed, weights, {
    ...minicpmFactors(parsed),
    mix: (name, _, states) => {
      const [queries, latents] = [`${name}.q_b_proj`, `${name}.kv_a_proj_with_mqa`];
      weights.check(queries, [heads * (plain + rotary), q_lora_rank]);
      weights.reorder(queries, neighbours(heads, plain, rotary));
      weights.check(latents, [kv_lora_rank + rotary, dims]);
      weights.reorder(latents, neighbours(1, kv_lora_rank, rotary));
      return attention(name, states);
    },
  });
}

/** Of so many heads the features without a position, then those with one, a pair after the other. */
function neighbours(heads: number, plain: number, rotary: number): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    const first = head * (plain + rotary);
    const pairs = Array.from({ length: rotary }, (_, i) => {
      return { first: first + plain + Math.floor(i / 2) + (i % 2) * (rotary / 2), count: 1 };
    });
    return [{ first, count: plain }, ...pairs];
  }).flat();
}
