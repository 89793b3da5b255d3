// OLMo 2: norms behind attention and MLP instead of before, and over all of the queries and keys.
import { type BaseConfig, headsOf } from "../config.ts";
import { type Design, normsBehind } from "../design.ts";
import { family } from "../family.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

export const olmo2 = family({ design: olmoDesign });

export function olmoDesign(config: BaseConfig, weights: Weights): Design {
  const { base, dims } = ropeOptions(config, headsOf(config).headDim);
  const near = makeRope(weights, { base, dims });
  return {
    norms: normsBehind,
    normsAllHeads: true,
    // A context that was stretched is so for the layers that see all of it.
    rope: (whole, window) => (window === undefined ? whole() : near),
  };
}
