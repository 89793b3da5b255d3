// EXAONE 4: norms behind attention and MLP instead of before, and on queries and keys. Where some layers have a
// window, those without one have no positions.
import { z } from "zod";
import { count, word } from "../checkpoint/config.ts";
import { normsBehind } from "../design/design.ts";
import { family } from "../design/family.ts";

export const exaone4 = family({
  config: {
    /** "LLLG" for three layers with a window and one without, and so on; or how many to one without. */
    sliding_window_pattern: z
      .union([word.regex(/^[LG]+$/, 'expected "L" or "G" a layer'), count])
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
