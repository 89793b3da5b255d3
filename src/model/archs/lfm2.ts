// LFM 2: short convolutions in most layers, attention in the others.
import { z } from "zod";
import { count, flag, integer, layerTypes, real } from "../checkpoint/config.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { shortConvolution } from "../layers/convolution-layers.ts";

const keys = {
  conv_L_cache: count,
  block_ff_dim: count.nullish(),
  block_multiple_of: count.default(256),
  block_ffn_dim_multiplier: real.nullish(),
  block_auto_adjust_ff_dim: flag.default(false),
  full_attn_idxs: z.array(integer).nullish(),
  layer_types: layerTypes("conv", "full_attention").nullish(),
};

export const lfm2 = family({
  config: keys,
  defaults: { rms_norm_eps: 1e-5, rope_theta: 1_000_000 },
  keys: { rms_norm_eps: "norm_eps" },
  names: {
    ".feed_forward.w1.": ".feed_forward.gate_proj.",
    ".feed_forward.w3.": ".feed_forward.up_proj.",
    ".feed_forward.w2.": ".feed_forward.down_proj.",
  },
  design: (config, weights) => {
    const { hidden_size: dims, full_attn_idxs, layer_types, conv_L_cache } = config;
    const attends = (layer: number) =>
      full_attn_idxs?.includes(layer) ?? layer_types?.[layer] === "full_attention";
    return {
      config: { tie_word_embeddings: true },
      attentionName: (layer) => (attends(layer) ? "self_attn" : "conv"),
      norms: { attention: "operator_norm", mlp: "ffn_norm" },
      headNorms: ["q_layernorm", "k_layernorm"],
      mix: (name, layer, states) =>
        attends(layer) ? undefined : shortConvolution(weights, name, states, dims, conv_L_cache),
      mlpName: "feed_forward",
      hidden: mlpSize(config),
    };
  },
});

function mlpSize(config: ConfigOf<typeof keys>): number {
  const size = config.block_ff_dim ?? config.intermediate_size;
  if (!config.block_auto_adjust_ff_dim) return size;
  const { block_ffn_dim_multiplier: factor, block_multiple_of: multiple } = config;
  const narrowed = Math.floor((2 * size) / 3);
  const scaled = factor == null ? narrowed : Math.floor(factor * narrowed);
  return multiple * Math.ceil(scaled / multiple);
}
