// Mixtral: Llama with experts in every layer.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rope_theta: z.number().positive().default(1_000_000),
  num_local_experts: z.int().positive().default(8),
  num_experts_per_tok: z.int().positive().default(2),
});

export function mixtral(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, num_local_experts: experts } = parsed;
  const routing = {
    each: parsed.num_experts_per_tok,
    scores: "softmax" as const,
    isNormalized: true,
    scale: 1,
  };
  weights.renameParts({ ".block_sparse_moe.": ".mlp." });
  return transformer(parsed, weights, {
    slides: () => true,
    mlp: (name) => {
      stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
      return routedMlp(weights, name, { experts, dims, hidden }, routing);
    },
  });
}
