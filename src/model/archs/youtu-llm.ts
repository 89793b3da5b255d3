// Youtu LLM: latent attention as in DeepSeek V2, without experts.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { DeepseekConfig, deepseekAttention } from "./deepseek-v2.ts";

const Config = DeepseekConfig.extend({
  rope_theta: z.number().positive().default(1_600_000),
  tie_word_embeddings: z.boolean().default(true),
});

export function youtuLlm(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const attention = deepseekAttention(parsed, weights, parsed.rms_norm_eps);
  return transformer(parsed, weights, { mix: (name, _, states) => attention(name, states) });
}
