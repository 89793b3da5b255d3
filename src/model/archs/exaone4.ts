// EXAONE 4: norms after attention and MLP instead of before, and on queries and keys. If any layers have a window,
// the layers without a window have no RoPE.
import { z } from "zod";
import { integer, word } from "../checkpoint/config.ts";
import { normsBehind } from "../design/design.ts";
import { family } from "../design/family.ts";

export const exaone4 = family({
  config: {
    /** Layers with (L) and without (G) a window, repeated; or n, if every n-th layer has none; 0 if none has one. */
    sliding_window_pattern: z
      .union([word.regex(/^[LG]+$/, 'expected "L" or "G" a layer'), integer.nonnegative()])
      .nullish(),
  },
  design: ({ sliding_window, sliding_window_pattern: pattern }) => ({
    norms: normsBehind,
    headNorms: ["q_norm", "k_norm"],
    slides: (layer) =>
      typeof pattern === "string"
        ? pattern[layer % pattern.length] === "L"
        : Boolean(pattern && (layer + 1) % pattern !== 0),
    rope: (whole, window) => (!sliding_window || window !== undefined ? whole() : undefined),
  }),
});
