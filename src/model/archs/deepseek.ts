// DeepSeek MoE, before V2: Llama's attention, and experts chosen by softmax beside some that all tokens go through.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers } from "./deepseek-v2.ts";

const Config = ExpertsConfig.extend({
  norm_topk_prob: z.boolean().default(false),
  scoring_func: z.literal("softmax").default("softmax"),
});

export function deepseek(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const routing = {
    each: parsed.num_experts_per_tok ?? 1,
    scores: "softmax" as const,
    isNormalized: parsed.norm_topk_prob,
    scale: 1,
  };
  return transformer(parsed, weights, { mlp: expertLayers(parsed, weights, () => routing) });
}
