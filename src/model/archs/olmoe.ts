// OLMoE: experts in every layer, and norms over all of the queries and keys.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp } from "../experts.ts";
import type { Model } from "../model.ts";
import { attentionLayers, preNormDecoder } from "../pre-norm-decoder.ts";
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
  return preNormDecoder(
    parsed,
    weights,
    attentionLayers(parsed, weights, { norms: "all" }),
    (name) => routedMlp(weights, name, { experts, dims, hidden }, routing),
  );
}
