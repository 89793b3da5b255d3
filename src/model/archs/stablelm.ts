// StableLM 2 and 3B: layer norms, a quarter of each head rotated; some have attention and MLP beside each other, and
// a layer norm on each head of queries and keys.

import { joined } from "../arrangement.ts";
import { flag } from "../config.ts";
import { usualNorms } from "../design.ts";
import { family } from "../family.ts";
import { headwiseNorms } from "../head-changes.ts";
import { plainLayerNorm } from "../layers.ts";
import type { Weights } from "../weights.ts";

export const stablelm = family({
  config: { use_parallel_residual: flag.default(false), qk_layernorm: flag.default(false) },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.25 },
  keys: { rms_norm_eps: "layer_norm_eps" },
  design: ({ rms_norm_eps: eps, use_parallel_residual: isParallel, qk_layernorm }, weights) => ({
    isParallel,
    isLayerNorm: true,
    norms: isParallel ? { attention: "input_layernorm" } : usualNorms,
    parts: (name, sizes) => {
      if (!qk_layernorm) return {};
      const norm = plainLayerNorm(eps);
      const [q, k] = [`${name}.q_layernorm`, `${name}.k_layernorm`];
      joinNorms(weights, q, sizes.heads, sizes.headDim);
      joinNorms(weights, k, sizes.kvHeads, sizes.headDim);
      return { project: headwiseNorms(weights, name, sizes, [`${q}.weight`, `${k}.weight`], norm) };
    },
  }),
});

/** The authors' files have a tensor a head. */
function joinNorms(weights: Weights, name: string, heads: number, headDim: number): void {
  if (weights.has(`${name}.weight`)) return;
  const each = Array.from({ length: heads }, (_, i) => `${name}.norms.${i}.weight`);
  for (const one of each) weights.reshape(one, [headDim], [1, headDim]);
  weights.arrange(each, (stored) => joined(`${name}.weight`, stored));
}
