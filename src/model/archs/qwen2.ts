// Qwen 2 and 2.5, MiMo 7B: Llama with biases on queries, keys and values.
import { flag, integer, positive } from "../config.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";

export const qwenKeys = {
  rope_theta: positive.default(1_000_000),
  use_sliding_window: flag.nullish(),
  /** With windows in use, the layers from this one on have them. */
  max_window_layers: integer.nullish(),
};

export const qwen2 = family({ config: qwenKeys, design: qwenDesign });

/** A window in the configuration does not mean that it is used. */
export function qwenDesign(config: ConfigOf<typeof qwenKeys>): Design {
  const { use_sliding_window, max_window_layers } = config;
  return { slides: (layer) => use_sliding_window === true && layer >= (max_window_layers ?? 0) };
}
