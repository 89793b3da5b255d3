// Ministral 3: Mistral whose queries grow with their position.
import { z } from "zod";
import { BaseConfig, parseConfig, RopeScaling } from "../config.ts";
import { withTemperature } from "../head-changes.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rope_parameters: RopeScaling.extend({
    rope_theta: z.number().positive(),
    llama_4_scaling_beta: z.number(),
    original_max_position_embeddings: z.int().positive(),
  }),
});

export function ministral3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { llama_4_scaling_beta: scale, original_max_position_embeddings: every } =
    parsed.rope_parameters;
  return transformer(parsed, weights, {
    slides: () => true,
    around: (attend, { heads, headDim }) =>
      withTemperature(attend, heads * headDim, { scale, every, first: 0 }),
  });
}
