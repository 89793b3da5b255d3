// Command R7B and A: Command R with a window in three layers of four, which alone have positions.
import { count, positive } from "../config.ts";
import { family } from "../family.ts";
import { cohereConfig, cohereDesign, cohereKeys } from "./cohere.ts";

export const cohere2 = family({
  config: {
    ...cohereConfig,
    rope_theta: positive.default(50_000),
    sliding_window: count.default(4096),
    sliding_window_pattern: count.default(4),
  },
  keys: cohereKeys,
  design: (config) => ({
    ...cohereDesign(config),
    slides: (layer) => (layer + 1) % config.sliding_window_pattern !== 0,
    rope: (whole, window) => (window === undefined ? undefined : whole()),
  }),
});
