// SmolLM 3: Llama with every fourth layer blind to positions.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  no_rope_layer_interval: z.int().positive().default(4),
  /** A number a layer: 1 where it does apply RoPE, in spite of the name. */
  no_rope_layers: z.array(z.int()).nullish(),
});

export function smollm3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { no_rope_layer_interval: interval, no_rope_layers: listed, num_hidden_layers } = parsed;
  if (listed && listed.length !== num_hidden_layers) {
    throw new LoadError(`config.json: no_rope_layers: expected ${num_hidden_layers} numbers`);
  }
  const rotates = (layer: number) => (listed ? listed[layer] !== 0 : (layer + 1) % interval !== 0);
  return transformer(parsed, weights, {
    rope: (whole, _, layer) => (rotates(layer) ? whole() : undefined),
  });
}
