// Kimi Linear: a delta net with a decay per feature in most layers, latent attention in the others, and experts.
import { z } from "zod";
import { type BaseConfig, count, integer, layerTypes, real } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { deltaAttention } from "../layers/delta-attention.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { type LatentParts, latentKeys, latentLayers } from "../layers/latent-layers.ts";
import type { Weights } from "../weights/weights.ts";

/** Configuration keys of delta nets: in linear_attn_config, or at the top level as transformers saves them. */
const linearKeys = {
  linear_attn_config: z
    .looseObject({
      /** Layers with a delta net, counted from 1. */
      kda_layers: z.array(count),
      num_heads: count,
      head_dim: count,
      short_conv_kernel_size: count.default(4),
      /** Lower bound of the decays' logarithms: limits how much the state forgets per token. */
      gate_lower_bound: real.negative().nullish(),
    })
    .nullish(),
  layer_types: layerTypes("linear_attention", "full_attention").nullish(),
  linear_num_heads: count.default(32),
  linear_head_dim: count.default(128),
  linear_conv_kernel_dim: count.default(4),
};

const keys = {
  ...latentKeys,
  ...expertKeys,
  ...linearKeys,
  n_routed_experts: integer,
  moe_intermediate_size: count,
  moe_router_activation_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
};

type KimiConfig = BaseConfig &
  Pick<ConfigOf<typeof keys>, keyof typeof latentKeys | keyof typeof linearKeys>;

export const kimiLinear = family({
  config: keys,
  names: {
    ".mlp.gate.e_score": ".mlp.e_score",
    ".q_conv.conv.": ".q_conv1d.",
    ".k_conv.conv.": ".k_conv1d.",
    ".v_conv.conv.": ".v_conv1d.",
    ".qkv_conv.conv.": ".conv1d.",
  },
  design: (config, weights) => ({
    mix: kimiLayers(config, weights, { eps: config.rms_norm_eps }),
    experts: expertsOf(config, {
      scores: config.moe_router_activation_func,
      correction: "e_score_correction_bias",
    }),
  }),
});

/** Builds a layer's delta net or latent attention. */
export function kimiLayers(config: KimiConfig, weights: Weights, own: Partial<LatentParts>) {
  const { linear_attn_config: linear, hidden_size: dims, rms_norm_eps: eps } = config;
  const heads = linear?.num_heads ?? config.linear_num_heads;
  const headDim = linear?.head_dim ?? config.linear_head_dim;
  const taps = linear?.short_conv_kernel_size ?? config.linear_conv_kernel_dim;
  const isLinear = (layer: number) =>
    linear
      ? linear.kda_layers.includes(layer + 1)
      : config.layer_types?.[layer] === "linear_attention";
  const parts = { eps, least: linear?.gate_lower_bound };
  // Latent attention has no RoPE: delta nets encode the positions.
  const latent = latentLayers(config, weights, { rope: undefined, ...own });
  return (name: string, layer: number, states: LayerStates) =>
    isLinear(layer)
      ? deltaAttention(weights, name, states, { dims, heads, headDim, taps }, parts)
      : latent(name, layer, states);
}
