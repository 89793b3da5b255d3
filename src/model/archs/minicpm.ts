// MiniCPM: Llama with a factor on the embedding, on each branch and on the logits.
import { z } from "zod";
import { divide, multiply } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { type Design, transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export const MinicpmConfig = BaseConfig.extend({
  rope_theta: z.number().positive().default(10_000),
  scale_emb: z.number().default(1),
  scale_depth: z.number().default(1),
  dim_model_base: z.int().positive().default(1),
});

export function minicpm(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(MinicpmConfig, config);
  return transformer(parsed, weights, minicpmFactors(parsed));
}

export function minicpmFactors(config: z.infer<typeof MinicpmConfig>): Design {
  const { scale_emb, scale_depth, dim_model_base, hidden_size, num_hidden_layers } = config;
  return {
    branchScale: scale_depth / Math.sqrt(num_hidden_layers),
    afterEmbedding: (h) => multiply(h, scale_emb),
    afterLogits: (logits) => divide(logits, hidden_size / dim_model_base),
  };
}
