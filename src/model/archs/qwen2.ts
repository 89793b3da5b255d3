// Qwen 2 and 2.5, MiMo 7B: Llama with biases on queries, keys and values.
import { flag, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const qwen2 = family({
  config: {
    use_sliding_window: flag.nullish(),
    /** Index of the first layer with a window, if windows are in use. */
    max_window_layers: integer.nullish(),
  },
  defaults: { rope_theta: 1_000_000 },
  // sliding_window applies only with use_sliding_window.
  design: ({ use_sliding_window, max_window_layers }) => ({
    slides: (layer) => use_sliding_window === true && layer >= (max_window_layers ?? 0),
  }),
});
