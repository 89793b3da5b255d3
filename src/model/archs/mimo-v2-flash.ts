// MiMo V2 Flash: windows with attention sinks in most layers. Layers with and without a window differ in heads and
// RoPE, and values have fewer features than keys.
import { z } from "zod";
import { count, flag, headsOf, positive, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { correctedScores, expertKeys, expertsOf, mlpTypes } from "../layers/expert-design.ts";
import { narrowValues } from "../layers/head-changes.ts";

const marks = z.array(z.union([z.literal(0), z.literal(1)])).nullish();

export const mimoV2Flash = family({
  config: {
    ...expertKeys,
    /** Per layer, 1 for a window; replaces layer_types. */
    hybrid_layer_pattern: marks,
    /** Per layer, 1 for experts; replaces mlp_layer_types. */
    moe_layer_freq: marks,
    add_swa_attention_sink_bias: flag.default(true),
    add_full_attention_sink_bias: flag.default(false),
    /** Window length without the current token, which `sliding_window` counts. */
    sliding_window_size: count.nullish(),
    head_dim: count,
    v_head_dim: count,
    swa_rope_theta: positive.optional(),
    swa_num_attention_heads: count.nullish(),
    swa_num_key_value_heads: count.nullish(),
    swa_head_dim: count.nullish(),
    swa_v_head_dim: count.nullish(),
    attention_value_scale: real.nullish(),
  },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.334 },
  keys: { rms_norm_eps: "layernorm_epsilon" },
  design: ({ moe_layer_freq, sliding_window_size: previous, ...config }, weights) => {
    const { layer_types, hybrid_layer_pattern } = config;
    const isNear = (layer: number) =>
      layer_types
        ? layer_types[layer] === "sliding_attention"
        : hybrid_layer_pattern?.[layer] === 1;
    const far = { ...headsOf(config), valueDim: config.v_head_dim };
    const near = {
      heads: config.swa_num_attention_heads ?? far.heads,
      kvHeads: config.swa_num_key_value_heads ?? 2 * far.kvHeads,
      headDim: config.swa_head_dim ?? far.headDim,
      valueDim: config.swa_v_head_dim ?? far.valueDim,
    };
    return {
      config: { sliding_window: previous ? previous + 1 : config.sliding_window },
      slides: isNear,
      heads: (layer) => (isNear(layer) ? near : far),
      localRopeBase: config.swa_rope_theta,
      attention: (name, { heads }, layer) => {
        const { add_swa_attention_sink_bias, add_full_attention_sink_bias } = config;
        const hasSinks = isNear(layer) ? add_swa_attention_sink_bias : add_full_attention_sink_bias;
        if (!hasSinks) return {};
        return { sinks: weights.arrays.tensor(`${name}.attention_sink_bias`, [heads]) };
      },
      parts: (name, sizes) => narrowValues(weights, name, sizes, config.attention_value_scale ?? 1),
      experts: expertsOf(
        {
          ...config,
          moe_layer_freq: 1,
          mlp_layer_types: config.mlp_layer_types ?? mlpTypes(moe_layer_freq),
        },
        correctedScores,
      ),
    };
  },
});
