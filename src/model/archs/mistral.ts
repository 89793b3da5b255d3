// Mistral: Llama with a window in every layer, where the configuration gives one.
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function mistral(config: unknown, weights: Weights): Model {
  return transformer(parseConfig(BaseConfig, config), weights, { slides: () => true });
}
