// Step 3.5: heads, RoPE and limits of MLPs that differ from layer to layer, and a gate for each head.
import { z } from "zod";
import type { Gating, Linear } from "../../device/device.ts";
import { clip, minimum, multiply, sigmoid } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { gatedMlp, opened, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

/** A number a layer; none or 0 for no limit. */
const limits = z.array(z.number().nullable()).nullish();

const Config = BaseConfig.extend({
  num_attention_groups: count,
  head_dim: count,
  rms_norm_eps: z.number().positive().default(1e-5),
  sliding_window: count.default(512),
  /** One, or one a layer. */
  rope_theta: z.union([z.number().positive(), z.array(z.number().positive())]).default(10_000),
  partial_rotary_factors: z.array(z.number().positive().max(1)).nullish(),
  /** Layers of these types have scaled positions; all unless it says. */
  yarn_only_types: z.array(z.string()).nullish(),
  /** Of layers with a window. */
  attention_other_setting: z
    .looseObject({ num_attention_heads: count, num_attention_groups: count })
    .nullish(),
  use_head_wise_attn_gate: z.boolean().default(true),
  moe_num_experts: count.default(288),
  moe_top_k: count.default(8),
  moe_intermediate_size: count.default(1280),
  share_expert_dim: count.default(1280),
  /** Numbers of layers, with commas between. */
  moe_layers_enum: z.string().nullish(),
  moe_router_scaling_factor: z.number().positive().default(3),
  norm_expert_weight: z.boolean().default(true),
  swiglu_limits: limits,
  swiglu_limits_shared: limits,
});
type Config = z.infer<typeof Config>;

export function step3p5(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps, head_dim: headDim, layer_types } = parsed;
  const { attention_other_setting: other, partial_rotary_factors, yarn_only_types } = parsed;
  // The authors' files keep norms as their distance from 1.
  const offset = weights.hasAny(/^model\.layers\.\d+\.moe\.gate\.weight$/) ? 1 : 0;
  weights.renameParts({
    ".moe.gate.": ".mlp.gate.",
    ".mlp.gate.gate.": ".mlp.gate.",
    ".moe.router_bias": ".mlp.gate.router_bias",
    ".moe.": ".mlp.switch_mlp.",
  });
  const slides = (layer: number) =>
    layer_types ? layer_types[layer] === "sliding_attention" : layer % 2 === 0;
  const thetaOf = (layer: number) =>
    Array.isArray(parsed.rope_theta) ? (parsed.rope_theta[layer] ?? 10_000) : parsed.rope_theta;
  return transformer({ ...parsed, rope_theta: thetaOf(0), rope_scaling: undefined }, weights, {
    makeNorm: (name) => rmsNorm(weights, name, dims, eps, offset),
    heads: (layer) => ({
      heads: (slides(layer) && other?.num_attention_heads) || parsed.num_attention_heads,
      kvHeads: (slides(layer) && other?.num_attention_groups) || parsed.num_attention_groups,
      headDim,
    }),
    slides,
    rope: (_rope, _window, layer) => {
      const type = layer_types?.[layer] ?? "full_attention";
      const isScaled = !yarn_only_types?.length || yarn_only_types.includes(type);
      const rotary = Math.floor(headDim * (partial_rotary_factors?.[layer] ?? 1));
      return makeRope(weights, {
        ...ropeOptions({ ...parsed, rope_theta: thetaOf(layer) }, rotary),
        scaling: isScaled ? firstFactors(parsed.rope_scaling, rotary / 2) : undefined,
      });
    },
    parts: (name, { heads }) => {
      const norms = {
        qNorm: rmsNorm(weights, `${name}.q_norm`, headDim, eps, offset),
        kNorm: rmsNorm(weights, `${name}.k_norm`, headDim, eps, offset),
      };
      if (!parsed.use_head_wise_attn_gate) return norms;
      const gate = weights.linear(`${name}.g_proj`, dims, heads);
      return {
        ...norms,
        afterwards: (attended, x, fused) => opened(attended, sigmoid(gate(x, fused))),
      };
    },
    mlp: (name, layer) => makeMlp(parsed, weights, name, layer),
    ignored: new RegExp(`\\.mtp|^model\\.layers\\.(${layersFrom(parsed.num_hidden_layers)})\\.`),
  });
}

/** GGUF files have factors for all features of a head, and not just for those that are rotated. */
function firstFactors(scaling: Config["rope_scaling"], count: number): Config["rope_scaling"] {
  if (!scaling?.long_factor) return scaling;
  return { ...scaling, long_factor: scaling.long_factor.slice(0, count) };
}

/** Numbers of layers that predict further tokens, which is not used. */
function layersFrom(first: number): string {
  return Array.from({ length: 8 }, (_, i) => first + i).join("|");
}

function makeMlp(config: Config, weights: Weights, name: string, layer: number): Linear {
  const { hidden_size: dims, moe_num_experts: experts, moe_intermediate_size: hidden } = config;
  const { moe_layers_enum, swiglu_limits, swiglu_limits_shared } = config;
  const isSparse = moe_layers_enum
    ? moe_layers_enum.split(",").map(Number).includes(layer)
    : layer > 0;
  const sharedGating = limited(swiglu_limits_shared?.[layer]);
  if (!isSparse) return gatedMlp(weights, name, dims, config.intermediate_size, sharedGating);
  const shared = `${name.replace(/mlp$/, "share_expert")}`;
  weights.rename({ [`${shared}.`]: `${name}.share_expert.` });
  return routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    {
      each: config.moe_top_k,
      scores: "sigmoid",
      correction: `${name}.gate.router_bias`,
      isNormalized: config.norm_expert_weight,
      scale: config.moe_router_scaling_factor,
    },
    { name: `${name}.share_expert`, width: config.share_expert_dim, gating: sharedGating },
    limited(swiglu_limits?.[layer]),
  );
}

/** The gate has no lower limit. */
function limited(limit: number | null | undefined): Gating {
  if (!limit) return "swiglu";
  return (gate, up) =>
    multiply(minimum(multiply(gate, sigmoid(gate)), limit), clip(up, -limit, limit));
}
