// Qwen 2 and 2.5: Llama with biases on queries, keys and values.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export const QwenConfig = BaseConfig.extend({
  rope_theta: z.number().positive().default(1_000_000),
  use_sliding_window: z.boolean().nullish(),
  /** With windows in use, the layers from this one on have them. */
  max_window_layers: z.int().nullish(),
});
export type QwenConfig = z.infer<typeof QwenConfig>;

export function qwen2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(QwenConfig, config);
  return transformer(parsed, weights, { slides: (layer) => qwenSlides(parsed, layer) });
}

/** A window in the configuration does not mean that it is used. */
export function qwenSlides(config: QwenConfig, layer: number): boolean {
  return config.use_sliding_window === true && layer >= (config.max_window_layers ?? 0);
}
