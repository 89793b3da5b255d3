// Command R7B and A: Command R with a window in three layers of four, which alone have positions.
import { count } from "../config.ts";
import { family } from "../family.ts";
import { cohereConfig, cohereDesign, cohereKeys } from "./cohere.ts";

export const cohere2 = family({
  config: { ...cohereConfig, sliding_window_pattern: count.default(4) },
  defaults: { rope_theta: 50_000, sliding_window: 4096 },
  keys: cohereKeys,
  design: (config) => ({
    ...cohereDesign(config),
    slides: (layer) => (layer + 1) % config.sliding_window_pattern !== 0,
    rope: (whole, window) => (window === undefined ? undefined : whole()),
  }),
});
