// Step 3.5: head counts, RoPE and MLP limits differ by layer; attention's output has a gate per head.
import { z } from "zod";
import { count, flag, positive, real, share, word } from "../checkpoint/config.ts";
import { makeRope, type RopeOptions, ropeOptions } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import { limitedSwiglu } from "../layers/activations.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { routedMlp } from "../layers/experts.ts";
import { gatedMlp } from "../layers/layers.ts";

/** SwiGLU limit per layer; null or 0 for none. */
const limits = z.array(real.nullable()).nullish();

export const step3p5 = family({
  config: {
    ...expertKeys,
    num_attention_groups: count,
    head_dim: count,
    /** RoPE base: one for all layers, or one per layer. */
    rope_theta: z.union([positive, z.array(positive)]).default(10_000),
    partial_rotary_factors: z.array(share).nullish(),
    /** Layer types whose RoPE is scaled; by default all. */
    yarn_only_types: z.array(word).nullish(),
    /** Head counts of layers with a window. */
    attention_other_setting: z
      .looseObject({ num_attention_heads: count, num_attention_groups: count })
      .nullish(),
    use_head_wise_attn_gate: flag.default(true),
    share_expert_dim: count.default(1280),
    /** Indices of the layers with experts, separated by commas. */
    moe_layers_enum: word.nullish(),
    swiglu_limits: limits,
    swiglu_limits_shared: limits,
  },
  defaults: {
    rms_norm_eps: 1e-5,
    sliding_window: 512,
    n_routed_experts: 288,
    num_experts_per_tok: 8,
    moe_intermediate_size: 1280,
    routed_scaling_factor: 3,
  },
  keys: {
    n_routed_experts: "moe_num_experts",
    num_experts_per_tok: "moe_top_k",
    routed_scaling_factor: "moe_router_scaling_factor",
    norm_topk_prob: "norm_expert_weight",
  },
  design: (config, weights) => {
    const { hidden_size: dims, head_dim: headDim, layer_types, rope_theta } = config;
    const { attention_other_setting: other, partial_rotary_factors, yarn_only_types } = config;
    // Only the authors' files, recognized by this name, store norms as weight - 1.
    const normOffset = weights.stored.hasAny(/^model\.layers\.\d+\.moe\.gate\.weight$/) ? 1 : 0;
    weights.stored.renameParts({
      ".moe.gate.": ".mlp.gate.",
      ".moe.router_bias": ".mlp.gate.router_bias",
      ".moe.": ".mlp.switch_mlp.",
      ".share_expert.": ".mlp.share_expert.",
      ".mlp.mlp.": ".mlp.",
    });
    const slides = (layer: number) =>
      layer_types ? layer_types[layer] === "sliding_attention" : layer % 2 === 0;
    const thetas = [rope_theta].flat();
    const sparse = config.moe_layers_enum?.split(",").map(Number);
    return {
      config: { rope_theta: thetas[0]!, rope_scaling: undefined },
      normOffset,
      headNorms: ["q_norm", "k_norm"],
      heads: (layer) => ({
        heads: (slides(layer) && other?.num_attention_heads) || config.num_attention_heads,
        kvHeads: (slides(layer) && other?.num_attention_groups) || config.num_attention_groups,
        headDim,
      }),
      slides,
      rope: (_rope, _window, layer) => {
        const type = layer_types?.[layer] ?? "full_attention";
        const isScaled = !yarn_only_types?.length || yarn_only_types.includes(type);
        const theta = Array.isArray(rope_theta) ? (rope_theta[layer] ?? 10_000) : rope_theta;
        const rotary = Math.floor(headDim * (partial_rotary_factors?.[layer] ?? 1));
        const options = ropeOptions({ ...config, rope_theta: theta }, rotary);
        const scaling = isScaled ? firstFactors(options.scaling, rotary / 2) : undefined;
        return makeRope(weights, { ...options, scaling });
      },
      outputGate: config.use_head_wise_attn_gate ? { name: "g_proj", isPerHead: true } : undefined,
      mlp: (name, layer) => {
        const gating = limitedSwiglu(config.swiglu_limits_shared?.[layer]);
        const isSparse = sparse ? sparse.includes(layer) : layer > 0;
        if (!isSparse) return gatedMlp(weights, name, dims, config.intermediate_size, gating);
        const experts = expertsOf(config, {
          scores: "sigmoid",
          correction: "gate.router_bias",
          shared: { name: "share_expert", width: config.share_expert_dim, gating },
        });
        return routedMlp(
          weights,
          name,
          dims,
          experts,
          limitedSwiglu(config.swiglu_limits?.[layer]),
        );
      },
      hasLayersBehind: true,
    };
  },
});

/** Keeps the rotary features' longrope factors: GGUF files have factors for a head's other features, too. */
function firstFactors(scaling: RopeOptions["scaling"], count: number): RopeOptions["scaling"] {
  if (!scaling?.long_factor) return scaling;
  const [long_factor, short_factor] = [scaling.long_factor, scaling.short_factor].map((factors) =>
    factors?.slice(0, count),
  );
  return { ...scaling, long_factor, short_factor };
}
