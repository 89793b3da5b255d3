// OLMo 3: OLMo 2 with a window in three layers of four.
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { olmoDecoder } from "./olmo2.ts";

export function olmo3(config: unknown, weights: Weights): Model {
  return olmoDecoder(parseConfig(BaseConfig, config), weights, (layer) => (layer + 1) % 4 !== 0);
}
