// EXAONE 4: norms behind attention and MLP instead of before, and on queries and keys. Where some layers have a
// window, those without one have no positions.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** "LLLG" for three layers with a window and one without, and so on; or how many to one without. */
  sliding_window_pattern: z
    .union([z.string().regex(/^[LG]+$/, 'expected "L" or "G" a layer'), z.int().positive()])
    .nullish(),
});

export function exaone4(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { sliding_window, sliding_window_pattern: pattern } = parsed;
  const slides = (layer: number) =>
    typeof pattern === "string"
      ? pattern[layer % pattern.length] === "L"
      : Boolean(pattern && (layer + 1) % pattern !== 0);
  return transformer(parsed, weights, {
    slides,
    rope: (whole, window) => (!sliding_window || window !== undefined ? whole() : undefined),
    headNorms: ["q_norm", "k_norm"],
    norms: {
      afterAttention: "post_attention_layernorm",
      afterMlp: "post_feedforward_layernorm",
    },
  });
}
