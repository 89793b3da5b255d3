// MiMo V2 Flash: windows with attention sinks in most layers, each kind with heads and positions of its own. Values have
// fewer features than keys.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { concatenate, multiply, reshape, slice, split, zeros } from "../../mlx/ops.ts";
import { count, flag, positive, real, share } from "../config.ts";
import { correctedScores, expertKeys, expertsOf } from "../expert-design.ts";
import { type ConfigOf, family } from "../family.ts";
import type { AttentionBlock } from "../layers.ts";
import { makeRope, type Rope } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const flags = z.array(z.union([z.literal(0), z.literal(1)]));

const keys = {
  ...expertKeys,
  /** 1 for layers with a window. */
  hybrid_layer_pattern: flags,
  /** 1 for layers with experts. */
  moe_layer_freq: flags,
  add_swa_attention_sink_bias: flag,
  add_full_attention_sink_bias: flag,
  sliding_window_size: count,
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
};
type Config = ConfigOf<typeof keys>;

export const mimoV2Flash = family({
  config: keys,
  keys: { rms_norm_eps: "layernorm_epsilon" },
  design: (config, weights) => ({
    mix: attentionLayers(config, weights),
    experts: expertsOf(
      { ...config, moe_layer_freq: 1 },
      { ...correctedScores, isSparse: (layer) => config.moe_layer_freq[layer] === 1 },
    ),
  }),
});

type Kind = {
  heads: number;
  kvHeads: number;
  headDim: number;
  valueDim: number;
  rope: Rope;
  window: number | undefined;
  hasSinks: boolean;
};

function attentionLayers(config: Config, weights: Weights) {
  const kind = (base: number, { headDim, valueDim, ...rest }: Omit<Kind, "rope">): Kind => {
    if (valueDim > headDim) {
      throw new LoadError(`config.json: values of ${valueDim} features, with keys of ${headDim}`);
    }
    const rotary = Math.floor(headDim * config.partial_rotary_factor);
    return { ...rest, headDim, valueDim, rope: makeRope(weights, { dims: rotary, base }) };
  };
  const far = kind(config.rope_theta, {
    heads: config.num_attention_heads,
    kvHeads: config.num_key_value_heads ?? config.num_attention_heads,
    headDim: config.head_dim,
    valueDim: config.v_head_dim,
    window: undefined,
    hasSinks: config.add_full_attention_sink_bias,
  });
  const near = kind(config.swa_rope_theta, {
    heads: config.swa_num_attention_heads,
    kvHeads: config.swa_num_key_value_heads,
    headDim: config.swa_head_dim,
    valueDim: config.swa_v_head_dim,
    window: config.sliding_window_size,
    hasSinks: config.add_swa_attention_sink_bias,
  });
  return (name: string, layer: number, states: LayerStates): AttentionBlock =>
    attention(config, weights, name, states, config.hybrid_layer_pattern[layer] ? near : far);
}

/** Values are kept with as many features as keys, of which the last are 0. */
function attention(
  config: Config,
  weights: Weights,
  name: string,
  states: LayerStates,
  kind: Kind,
): AttentionBlock {
  const { hidden_size: dims, attention_value_scale: valueScale } = config;
  const { heads, kvHeads, headDim, valueDim, rope, window } = kind;
  const [queries, keys] = [heads * headDim, kvHeads * headDim];
  const parts = ["q_proj", "k_proj", "v_proj"].map((part) => `${name}.${part}`);
  const outputs = [queries, keys, kvHeads * valueDim];
  const project = weights.joined(`${name}.qkv_proj`, parts, dims, outputs);
  const oProj = weights.linear(`${name}.o_proj`, heads * valueDim, dims);
  const sinks = kind.hasSinks ? weights.tensor(`${name}.attention_sink_bias`, [heads]) : undefined;
  const state = states.kv({ heads, kvHeads, headDim, window });
  const options = { scale: headDim ** -0.5, window, sinks };
  const padded = (qkv: MlxArray) => {
    const [qk, v] = split(qkv, [queries + keys]) as [MlxArray, MlxArray];
    const rest = zeros([qkv.shape[0]!, kvHeads, headDim - valueDim], qkv.dtype);
    const whole = concatenate([reshape(v, [-1, kvHeads, valueDim]), rest], -1);
    return concatenate([qk, reshape(whole, [-1, keys])], -1);
  };
  return (x, step, { norm, residual } = {}) => {
    const qkv = padded(project(x, { norm }));
    const attended = step.attend(state, qkv, { heads, kvHeads, headDim, rope }, options);
    const byHead = slice(reshape(attended, [-1, heads, headDim]), 2, 0, valueDim);
    const values = reshape(byHead, [-1, heads * valueDim]);
    return oProj(valueScale == null ? values : multiply(values, valueScale), { residual });
  };
}
