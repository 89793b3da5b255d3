// StableLM 2 and 3B: layer norms, a quarter of each head rotated; some have attention and MLP beside each other, and
// a layer norm on each head of queries and keys.
import { z } from "zod";
import { joined } from "../arrangement.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { normedHeads } from "../head-changes.ts";
import { type AttentionSizes, layerNorm, projection } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  partial_rotary_factor: z.number().positive().max(1).default(0.25),
  use_parallel_residual: z.boolean().default(false),
  qk_layernorm: z.boolean().default(false),
});

export function stablelm(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, { rms_norm_eps: "layer_norm_eps" });
  const { hidden_size: dims, rms_norm_eps: eps, use_parallel_residual: isParallel } = parsed;
  return transformer(parsed, weights, {
    isParallel,
    norms: {
      attention: "input_layernorm",
      ...(isParallel ? {} : { mlp: "post_attention_layernorm" }),
    },
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    parts: parsed.qk_layernorm
      ? (name, sizes) => ({ project: headNorms(weights, name, sizes, eps) })
      : undefined,
  });
}

/** A layer norm over each head, with a weight of its own for each. */
function headNorms(weights: Weights, name: string, sizes: AttentionSizes, eps: number) {
  const { heads, kvHeads, headDim } = sizes;
  const weightOf = (part: string, count: number) => {
    const all = `${name}.${part}.weight`;
    if (!weights.has(all)) {
      const each = Array.from({ length: count }, (_, i) => `${name}.${part}.norms.${i}.weight`);
      for (const one of each) weights.reshape(one, [headDim], [1, headDim]);
      weights.arrange(each, (stored) => joined(all, stored));
    }
    return weights.tensor(all, [count, headDim]);
  };
  const own = { q: weightOf("q_layernorm", heads), k: weightOf("k_layernorm", kvHeads) };
  return normedHeads(projection(weights, name, sizes), sizes, own, eps);
}
