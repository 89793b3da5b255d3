// Jamba: Mamba in most layers, attention without positions in the others, and experts in some.
import { count, integer, layerTypes } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { rmsNorm } from "../layers/layers.ts";
import { mambaKeys, mambaMixer, mambaSizes } from "../layers/mamba-layers.ts";

export const jamba = family({
  config: {
    ...expertKeys,
    attn_layer_offset: integer.default(4),
    attn_layer_period: count.default(8),
    expert_layer_offset: integer.default(1),
    expert_layer_period: count.default(2),
    /** Type of each layer; replaces attn_layer_offset and attn_layer_period. */
    layers_block_type: layerTypes("linear_attention", "full_attention").nullish(),
    mamba_expand: count.default(2),
    conv_kernel: count.default(4),
    state_size: count.default(16),
    time_step_rank: mambaKeys.time_step_rank.default("auto"),
  },
  defaults: { n_routed_experts: 16, num_experts_per_tok: 2 },
  keys: {
    conv_kernel: "mamba_d_conv",
    state_size: "mamba_d_state",
    time_step_rank: "mamba_dt_rank",
    n_routed_experts: "num_experts",
  },
  names: { ".feed_forward.router.": ".feed_forward.gate." },
  design: ({ layers_block_type: types, ...config }, weights) => {
    const { rms_norm_eps: eps, expert_layer_period: period, expert_layer_offset: offset } = config;
    const sizes = mambaSizes(config, config.mamba_expand * config.hidden_size);
    const attends = (layer: number) =>
      types
        ? types[layer] === "full_attention"
        : layer % config.attn_layer_period === config.attn_layer_offset;
    return {
      attentionName: (layer) => (attends(layer) ? "self_attn" : "mamba"),
      mlpName: "feed_forward",
      norms: { attention: "input_layernorm", mlp: "pre_ff_layernorm" },
      rope: () => undefined,
      mix: (name, layer, states) => {
        if (attends(layer)) return undefined;
        return mambaMixer(weights, name, states, sizes, {
          steps: rmsNorm(weights, `${name}.dt_layernorm`, sizes.rank, eps),
          keys: rmsNorm(weights, `${name}.b_layernorm`, sizes.stateSize, eps),
          queries: rmsNorm(weights, `${name}.c_layernorm`, sizes.stateSize, eps),
        });
      },
      experts:
        config.n_routed_experts === 1
          ? undefined
          : expertsOf(config, {
              isNormalized: false,
              isSparse: (layer) => layer % period === offset,
            }),
    };
  },
});
