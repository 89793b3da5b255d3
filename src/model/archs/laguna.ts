// Laguna, by Poolside: heads and RoPE that differ from layer to layer, and a gate for each head.
import { z } from "zod";
import { astype, logAddExp } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, RopeScaling } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { gatedMlp, opened } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.omit({ rope_parameters: true }).extend({
  head_dim: count.default(128),
  sliding_window: count.default(512),
  gating: z.boolean().default(true),
  partial_rotary_factor: z.number().positive().max(1).nullish(),
  /** By the type of a layer. */
  rope_parameters: z
    .record(z.string(), RopeScaling.extend({ rope_theta: z.number().positive().optional() }))
    .nullish(),
  num_attention_heads_per_layer: z.array(count).nullish(),
  mlp_layer_types: z.array(z.enum(["dense", "sparse"])).nullish(),
  num_experts: count.default(256),
  num_experts_per_tok: count.default(8),
  moe_intermediate_size: count.default(512),
  shared_expert_intermediate_size: count.default(512),
  moe_routed_scaling_factor: z.number().positive().default(1),
  moe_router_logit_softcapping: z.number().default(0),
  moe_router_score_func: z.enum(["sigmoid", "sqrtsoftplus"]).default("sigmoid"),
});

export function laguna(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, num_experts: experts, layer_types } = parsed;
  const { moe_intermediate_size: hidden, num_attention_heads_per_layer: listed } = parsed;
  const { rope_parameters: ropes, partial_rotary_factor, ...rest } = parsed;
  const headDim = parsed.head_dim;
  const ropeOf = (type: string) => {
    const scaling = ropes?.[type];
    const share = scaling?.partial_rotary_factor ?? partial_rotary_factor ?? 1;
    return makeRope(weights, {
      dims: Math.floor(headDim * share),
      base: scaling?.rope_theta ?? 10_000,
      scaling,
      maxPositions: parsed.max_position_embeddings,
    });
  };
  const byType = { full: ropeOf("full_attention"), sliding: ropeOf("sliding_attention") };
  weights.rename({ "language_model.": "" });
  return transformer(rest, weights, {
    headNorms: ["q_norm", "k_norm"],
    heads: (layer) =>
      headsOf({ ...parsed, num_attention_heads: listed?.[layer] ?? parsed.num_attention_heads }),
    rope: (_, __, layer) =>
      layer_types?.[layer] === "sliding_attention" ? byType.sliding : byType.full,
    parts: (name, { heads }) => {
      if (!parsed.gating) return {};
      const gate = weights.linear(`${name}.g_proj`, dims, heads);
      return {
        afterwards: (attended, x, fused) => {
          const open = logAddExp(astype(gate(x, fused), "float32"), 0);
          return opened(attended, astype(open, attended.dtype));
        },
      };
    },
    mlp: (name, layer) => {
      const kind = parsed.mlp_layer_types?.[layer] ?? (layer === 0 ? "dense" : "sparse");
      if (kind === "dense") return gatedMlp(weights, name, dims, intermediate_size);
      const bias = "e_score_correction_bias";
      weights.rename({
        [`${name}.gate.proj.`]: `${name}.gate.`,
        [`${name}.experts.${bias}`]: `${name}.gate.${bias}`,
      });
      return routedMlp(
        weights,
        name,
        { experts, dims, hidden },
        {
          each: parsed.num_experts_per_tok,
          scores: parsed.moe_router_score_func,
          softcap: parsed.moe_router_logit_softcapping || undefined,
          correction: `${name}.gate.${bias}`,
          isNormalized: true,
          scale: parsed.moe_routed_scaling_factor,
        },
        { name: `${name}.shared_expert`, width: parsed.shared_expert_intermediate_size },
      );
    },
  });
}
