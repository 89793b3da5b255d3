// Command R7B and A: Command R with a window and RoPE in three of four layers, neither in the fourth.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { cohere } from "./cohere.ts";

export const cohere2 = family({
  like: cohere,
  config: { sliding_window_pattern: count.default(4) },
  defaults: { rope_theta: 50_000, sliding_window: 4096 },
  design: ({ sliding_window_pattern: pattern }) => ({
    slides: (layer) => (layer + 1) % pattern !== 0,
    rope: (whole, window) => (window === undefined ? undefined : whole()),
  }),
});
