// MiMo V2 Flash: windows with attention sinks in most layers, each kind with heads and positions of its own. Values have
// fewer features than keys.
import { z } from "zod";
import { count, flag, headsOf, positive, real, share } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { correctedScores, expertKeys, expertsOf } from "../layers/expert-design.ts";
import { narrowValues } from "../layers/head-changes.ts";

const flags = z.array(z.union([z.literal(0), z.literal(1)]));

export const mimoV2Flash = family({
  config: {
    ...expertKeys,
    /** 1 for layers with a window. */
    hybrid_layer_pattern: flags,
    /** 1 for layers with experts. */
    moe_layer_freq: flags,
    add_swa_attention_sink_bias: flag,
    add_full_attention_sink_bias: flag,
    sliding_window: count,
    rms_norm_eps: positive,
    head_dim: count,
    v_head_dim: count,
    swa_rope_theta: positive,
    swa_num_attention_heads: count,
    swa_num_key_value_heads: count,
    swa_head_dim: count,
    swa_v_head_dim: count,
    partial_rotary_factor: share,
    attention_value_scale: real.nullish(),
  },
  keys: { rms_norm_eps: "layernorm_epsilon", sliding_window: "sliding_window_size" },
  design: (config, weights) => {
    const isNear = (layer: number) => config.hybrid_layer_pattern[layer] === 1;
    const near = {
      heads: config.swa_num_attention_heads,
      kvHeads: config.swa_num_key_value_heads,
      headDim: config.swa_head_dim,
      valueDim: config.swa_v_head_dim,
    };
    const far = { ...headsOf(config), valueDim: config.v_head_dim };
    return {
      slides: isNear,
      heads: (layer) => (isNear(layer) ? near : far),
      localRopeBase: config.swa_rope_theta,
      attention: (name, { heads }, layer) => {
        const { add_swa_attention_sink_bias, add_full_attention_sink_bias } = config;
        const hasSinks = isNear(layer) ? add_swa_attention_sink_bias : add_full_attention_sink_bias;
        return hasSinks ? { sinks: weights.tensor(`${name}.attention_sink_bias`, [heads]) } : {};
      },
      parts: (name, sizes) => narrowValues(weights, name, sizes, config.attention_value_scale ?? 1),
      experts: expertsOf(
        { ...config, moe_layer_freq: 1 },
        { ...correctedScores, isSparse: (layer) => config.moe_layer_freq[layer] === 1 },
      ),
    };
  },
});
