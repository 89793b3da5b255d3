// Helium and ERNIE 4.5: Llama whose neighbouring features rotate together.
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function helium(config: unknown, weights: Weights): Model {
  // Some of ERNIE's files have both halves of an MLP in one matrix.
  weights.renameParts({ ".mlp.up_gate_proj.": ".mlp.gate_up_proj." });
  return transformer(parseConfig(BaseConfig, config), weights, { rotatesNeighbours: true });
}
