// Phi 3, 3.5 and 4-mini: one matrix for queries, keys and values, one for the MLP's two halves.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  max_position_embeddings: z.int().positive().default(131_072),
  original_max_position_embeddings: z.int().positive().default(4096),
});

export function phi3(config: unknown, weights: Weights): Model {
  const { original_max_position_embeddings, ...parsed } = parseConfig(Config, config);
  const scaling = parsed.rope_scaling ?? parsed.rope_parameters;
  // The length it was trained with first stands beside the scaling, not in it.
  const rope_scaling = scaling && { original_max_position_embeddings, ...scaling };
  return transformer({ ...parsed, rope_scaling }, weights, { slides: () => true });
}
