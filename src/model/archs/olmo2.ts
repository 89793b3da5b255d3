// OLMo 2: norms behind attention and MLP instead of before, and over all of the queries and keys.
import { headsOf } from "../checkpoint/config.ts";
import { makeRope, ropeOptions } from "../contract/rope.ts";
import { normsBehind } from "../design/design.ts";
import { family } from "../design/family.ts";

export const olmo2 = family({
  design: (config, weights) => {
    const { base, dims } = ropeOptions(config, headsOf(config).headDim);
    const near = makeRope(weights, { base, dims });
    return {
      norms: normsBehind,
      normsAllHeads: true,
      // A context that was stretched is so for the layers that see all of it.
      rope: (whole, window) => (window === undefined ? whole() : near),
    };
  },
});
