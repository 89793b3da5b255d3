// StableLM 2 and 3B: layer norms, a quarter of each head rotated; some have attention and MLP beside each other, and
// a layer norm on each head of queries and keys.
import { z } from "zod";
import { joined } from "../arrangement.ts";
import { positive, share } from "../config.ts";
import { usualNorms } from "../design.ts";
import { family } from "../family.ts";
import { headwiseNorms } from "../head-changes.ts";
import type { Weights } from "../weights.ts";

export const stablelm = family({
  config: {
    rms_norm_eps: positive.default(1e-5),
    partial_rotary_factor: share.default(0.25),
    use_parallel_residual: z.boolean().default(false),
    qk_layernorm: z.boolean().default(false),
  },
  keys: { rms_norm_eps: "layer_norm_eps" },
  design: ({ rms_norm_eps: eps, use_parallel_residual: isParallel, qk_layernorm }, weights) => ({
    isParallel,
    isLayerNorm: true,
    norms: isParallel ? { attention: "input_layernorm" } : usualNorms,
    parts: (name, sizes) => {
      if (!qk_layernorm) return {};
      const [q, k] = [`${name}.q_layernorm`, `${name}.k_layernorm`];
      joinNorms(weights, q, sizes.heads, sizes.headDim);
      joinNorms(weights, k, sizes.kvHeads, sizes.headDim);
      return { project: headwiseNorms(weights, name, sizes, [q, k], eps) };
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
