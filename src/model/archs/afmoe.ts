// Trinity, by Arcee: norms before and behind attention and MLP, gated attention, RoPE only in layers with a window.
import { z } from "zod";
import { multiply, sigmoid } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { nameExperts, routedMlp } from "../experts.ts";
import { gatedMlp, opened } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
  layer_types: z.array(z.enum(["full_attention", "sliding_attention"])),
  moe_intermediate_size: count,
  num_experts: count,
  num_experts_per_tok: count,
  num_shared_experts: z.int().default(1),
  num_dense_layers: z.int().default(2),
  route_norm: z.boolean().default(true),
  route_scale: z.number().positive().default(2.826),
  score_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
  n_group: count.default(1),
  topk_group: count.default(1),
  mup_enabled: z.boolean().default(true),
});

export function afmoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, moe_intermediate_size: hidden } = parsed;
  const { num_experts: experts, num_shared_experts, n_group, topk_group } = parsed;
  return transformer(parsed, weights, {
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      mlp: "pre_mlp_layernorm",
      afterMlp: "post_mlp_layernorm",
    },
    headNorms: ["q_norm", "k_norm"],
    rope: (whole, window) => (window === undefined ? undefined : whole()),
    parts: (name, { heads, headDim }) => {
      const gate = weights.linear(`${name}.gate_proj`, dims, heads * headDim);
      return { afterwards: (attended, x, fused) => opened(attended, sigmoid(gate(x, fused))) };
    },
    mlp: (name, layer) => {
      if (layer < parsed.num_dense_layers) return gatedMlp(weights, name, dims, intermediate_size);
      nameExperts(weights, name);
      weights.rename({ [`${name}.router.gate.`]: `${name}.gate.` });
      return routedMlp(
        weights,
        name,
        { experts, dims, hidden },
        {
          each: parsed.num_experts_per_tok,
          scores: parsed.score_func,
          correction: `${name}.expert_bias`,
          groups: n_group > 1 ? { count: n_group, kept: topk_group, best: 2 } : undefined,
          isNormalized: parsed.route_norm,
          scale: parsed.route_scale,
        },
        { name: `${name}.shared_experts`, width: hidden * num_shared_experts },
      );
    },
    afterEmbedding: (h) => (parsed.mup_enabled ? multiply(h, dims ** 0.5) : h),
  });
}
