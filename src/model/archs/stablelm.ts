// StableLM 2 and 3B: layer norms, RoPE over a quarter of each head. Some have attention and MLP in parallel, and a
// layer norm per head of queries and keys.

import { flag } from "../checkpoint/config.ts";
import { joined } from "../checkpoint/stored/arrangement.ts";
import { usualNorms } from "../design/design.ts";
import { family } from "../design/family.ts";
import { plainLayerNorm } from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";

export const stablelm = family({
  config: { use_parallel_residual: flag.default(false), qk_layernorm: flag.default(false) },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.25 },
  keys: { rms_norm_eps: "layer_norm_eps" },
  design: ({ rms_norm_eps: eps, use_parallel_residual: isParallel, qk_layernorm }, weights) => ({
    isParallel,
    isLayerNorm: true,
    norms: isParallel ? { attention: "input_layernorm" } : usualNorms,
    headwiseNorms: qk_layernorm
      ? { query: "q_layernorm.weight", key: "k_layernorm.weight", norm: plainLayerNorm(eps) }
      : undefined,
    arrange: (name, { heads, kvHeads, headDim }) => {
      if (!qk_layernorm) return;
      joinNorms(weights, `${name}.q_layernorm`, heads, headDim);
      joinNorms(weights, `${name}.k_layernorm`, kvHeads, headDim);
    },
  }),
});

/** Concatenates the head norms' weights, for which the authors' files have one tensor per head. */
function joinNorms(weights: Weights, name: string, heads: number, headDim: number): void {
  if (weights.stored.has(`${name}.weight`)) return;
  const each = Array.from({ length: heads }, (_, i) => `${name}.norms.${i}.weight`);
  for (const one of each) weights.stored.reshape(one, [headDim], [1, headDim]);
  weights.stored.arrange(each, (stored) => joined(`${name}.weight`, stored));
}
