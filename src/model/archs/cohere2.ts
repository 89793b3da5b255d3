// Command R7B and A: Command R with a window in three layers of four, which alone have positions.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { CohereConfig, cohereDecoder, cohereKeys } from "./cohere.ts";

const Config = CohereConfig.extend({
  rope_theta: z.number().positive().default(50_000),
  sliding_window: z.int().positive().default(4096),
  sliding_window_pattern: z.int().positive().default(4),
});

export function cohere2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, cohereKeys);
  return cohereDecoder(parsed, weights, {
    slides: (layer) => (layer + 1) % parsed.sliding_window_pattern !== 0,
    rope: (whole, window) => (window === undefined ? undefined : whole()),
  });
}
