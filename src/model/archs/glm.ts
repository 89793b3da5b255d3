// GLM 4's first models: Llama whose neighbouring features rotate together.
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function glm(config: unknown, weights: Weights): Model {
  return transformer(parseConfig(BaseConfig, config), weights, { rotatesNeighbours: true });
}
