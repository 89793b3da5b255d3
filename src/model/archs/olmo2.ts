// OLMo 2: norms after attention and MLP instead of before; query and key norms span all heads.
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
      // RoPE scaling applies only to layers without a window.
      rope: (whole, window) => (window === undefined ? whole() : near),
    };
  },
});
