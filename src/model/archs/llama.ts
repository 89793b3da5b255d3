// Llama 2, 3, 3.1, 3.2, SmolLM2 and the many models of the same make.
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function llama(config: unknown, weights: Weights): Model {
  return transformer(parseConfig(BaseConfig, config), weights);
}
