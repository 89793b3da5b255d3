// Kimi Linear: a delta net with a decay for each feature in most layers, latent attention in the others, and experts.
import { z } from "zod";
import { type BaseConfig, count, integer, real } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { deltaAttention } from "../layers/delta-attention.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { type LatentParts, latentKeys, latentLayers } from "../layers/latent-layers.ts";
import type { Weights } from "../weights/weights.ts";

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

type KimiConfig = BaseConfig &
  Pick<ConfigOf<typeof keys>, keyof typeof latentKeys | "linear_attn_config">;

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
    const { max_position_embeddings, model_max_length } = config;
    return {
      config: { max_position_embeddings: max_position_embeddings ?? model_max_length },
      mix: kimiLayers(config, weights, { eps: config.rms_norm_eps }),
      experts: expertsOf(config, {
        scores: config.moe_router_activation_func,
        correction: "e_score_correction_bias",
      }),
    };
  },
});

/** A delta net in layers that have one, and latent attention in the others. */
export function kimiLayers(config: KimiConfig, weights: Weights, own: Partial<LatentParts>) {
  const { linear_attn_config: linear, hidden_size: dims, rms_norm_eps: eps } = config;
  const { num_heads: heads, head_dim: headDim, short_conv_kernel_size: taps } = linear;
  const parts = { eps, least: linear.gate_lower_bound };
  // Its positions are in the delta nets: nothing is rotated.
  const latent = latentLayers(config, weights, { rope: undefined, ...own });
  return (name: string, layer: number, states: LayerStates) =>
    linear.kda_layers.includes(layer + 1)
      ? deltaAttention(weights, name, states, { dims, heads, headDim, taps }, parts)
      : latent(name, layer, states);
}
