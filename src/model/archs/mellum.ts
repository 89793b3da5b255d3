// Mellum: Qwen 3's experts with a window in some layers, which have positions of their own.
import { z } from "zod";
import { headsOf, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { makeRopes, RopesConfig } from "./gemma3-text.ts";
import { sparseMlp } from "./qwen3-moe.ts";

const Config = RopesConfig.extend({
  num_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  moe_intermediate_size: z.int().positive(),
  norm_topk_prob: z.boolean().default(true),
});

export function mellum(config: unknown, weights: Weights): Model {
  const { rope_parameters, ...parsed } = parseConfig(Config, config);
  const ropes = makeRopes({ ...parsed, rope_parameters }, weights, headsOf(parsed).headDim);
  return transformer(parsed, weights, {
    headNorms: ["q_norm", "k_norm"],
    rope: (_, window) => (window === undefined ? ropes.full : ropes.sliding),
    mlp: (name) => sparseMlp(parsed, weights, name),
  });
}
