// Kimi Linear: a delta net with a decay for each feature in most layers, latent attention in the others, and experts.
import { z } from "zod";
import { count, integer, real } from "../config.ts";
import { deltaAttention } from "../delta-attention.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { type ConfigOf, family } from "../family.ts";
import { latentKeys, latentLayers } from "../latent-layers.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const keys = {
  ...latentKeys,
  ...expertKeys,
  linear_attn_config: z.looseObject({
    /** Those with a delta net; the first layer is 1. */
    kda_layers: z.array(count),
    num_heads: count,
    head_dim: count,
    short_conv_kernel_size: count.default(4),
    /** Of the logarithm of a decay. */
    gate_lower_bound: real.negative().nullish(),
  }),
  n_routed_experts: integer,
  moe_intermediate_size: count,
  moe_router_activation_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
  model_max_length: count.nullish(),
};

export const kimiLinear = family({
  config: keys,
  keys: {
    n_routed_experts: "num_experts",
    num_experts_per_tok: "num_experts_per_token",
    n_shared_experts: "num_shared_experts",
    norm_topk_prob: "moe_renormalize",
    n_group: "num_expert_group",
  },
  names: {
    ".mlp.gate.e_score": ".mlp.e_score",
    ".q_conv.conv.": ".q_conv1d.",
    ".k_conv.conv.": ".k_conv1d.",
    ".v_conv.conv.": ".v_conv1d.",
    ".qkv_conv.conv.": ".conv1d.",
  },
  design: (config, weights) => {
    const { rms_norm_eps: eps, max_position_embeddings, model_max_length } = config;
    // Its positions are in the delta nets: nothing is rotated.
    const latent = latentLayers(config, weights, { eps, rope: undefined });
    return {
      config: { max_position_embeddings: max_position_embeddings ?? model_max_length },
      mix: (name, layer, states) =>
        kimiDelta(config, weights, name, layer, states) ?? latent(name, layer, states),
      experts: expertsOf(config, {
        scores: config.moe_router_activation_func,
        correction: "e_score_correction_bias",
      }),
    };
  },
});

/** The delta net of a layer that has one. */
export function kimiDelta(
  { linear_attn_config: linear, hidden_size: dims, rms_norm_eps: eps }: KimiConfig,
  weights: Weights,
  name: string,
  layer: number,
  states: LayerStates,
) {
  if (!linear.kda_layers.includes(layer + 1)) return undefined;
  const { num_heads: heads, head_dim: headDim, short_conv_kernel_size: taps } = linear;
  const parts = { eps, least: linear.gate_lower_bound };
  return deltaAttention(weights, name, states, { dims, heads, headDim, taps }, parts);
}
type KimiConfig = Pick<
  ConfigOf<typeof keys>,
  "linear_attn_config" | "hidden_size" | "rms_norm_eps"
>;
