// GLM 4's first models and GLM Edge: neighbouring features rotate together, half of each head unless it says.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export const GlmConfig = BaseConfig.extend({
  partial_rotary_factor: z.number().positive().max(1).default(0.5),
});

export function glm(config: unknown, weights: Weights): Model {
  return transformer(parseConfig(GlmConfig, config), weights, { rotatesNeighbours: true });
}
