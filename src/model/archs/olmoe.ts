// OLMoE: experts in every layer, and norms over all of the queries and keys.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { normedProjection } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  num_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  norm_topk_prob: z.boolean().default(false),
});

export function olmoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, num_experts: experts } = parsed;
  const routing = {
    each: parsed.num_experts_per_tok,
    scores: "softmax" as const,
    isNormalized: parsed.norm_topk_prob,
    scale: 1,
  };
  return transformer(parsed, weights, {
    parts: (name, sizes) => ({
      project: normedProjection(weights, name, sizes, parsed.rms_norm_eps),
    }),
    mlp: (name) => routedMlp(weights, name, { experts, dims, hidden }, routing),
  });
}
