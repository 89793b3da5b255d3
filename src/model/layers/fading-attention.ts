// Builds linear attention with a fixed decay per head (Lightning attention), as in Ring 2 and 2.5.
import type { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, concatenate, multiply, reshape, sigmoid, split, zeros } from "../../mlx/ops.ts";
import { type BaseConfig, count, headsOf, layerTypes } from "../checkpoint/config.ts";
import { makeRope, ofAnyLength, type Rope, ropeOptions, rotated } from "../contract/rope.ts";
import type { LayerStates } from "../contract/states.ts";
import type { Weights } from "../weights/weights.ts";
import { type AttentionBlock, headFeatures, ownHeads, rmsNorm } from "./layers.ts";
import { groupedNorm } from "./recurrent-layers.ts";

/** Keys that tell which layers have full attention: the last one of each group, and all of an incomplete group. */
export const groupKeys = {
  layer_group_size: count,
  layer_types: layerTypes("linear_attention", "full_attention").nullish(),
};

export function isGlobal(
  { layer_group_size: size, num_hidden_layers: layers, layer_types }: GroupConfig,
  layer: number,
): boolean {
  if (layer_types) return layer_types[layer] === "full_attention";
  return (layer + 1) % size === 0 || layer >= layers - (layers % size);
}
type GroupConfig = z.infer<z.ZodObject<typeof groupKeys>> & { num_hidden_layers: number };

type FadingConfig = BaseConfig & {
  use_qk_norm: boolean;
  /** Number of groups of the output norm. */
  group_norm_size: number;
};

/** Returns a function that builds a layer. `pace` is a factor on the layer's decay rates, smaller in later layers. */
export function fadingLayers(config: FadingConfig, weights: Weights) {
  const { use_qk_norm: isNormed, group_norm_size: groups, partial_rotary_factor } = config;
  const rotary = Math.floor(headsOf(config).headDim * (partial_rotary_factor ?? 1));
  const rope = ofAnyLength(makeRope(weights, ropeOptions(config, rotary)));
  return (name: string, states: LayerStates, pace: number) =>
    fadingAttention(config, weights, name, states, { rope, isNormed, groups, pace });
}

type FadingParts = { rope: Rope; isNormed: boolean; groups: number; pace: number };

/** Builds a layer from qkv_proj, query_layernorm and key_layernorm, g_norm, g_proj, o_proj. */
function fadingAttention(
  config: BaseConfig,
  weights: Weights,
  name: string,
  states: LayerStates,
  { rope, isNormed, groups, pace }: FadingParts,
): AttentionBlock {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const all = headsOf({ ...config, num_key_value_heads: undefined });
  // Passes the output norm's groups as KV heads: a rank gets all heads of several groups, or a part of one group.
  const own = ownHeads(weights, name, { dims, ...all, kvHeads: groups });
  const { heads, headDim } = own;
  const [width, features] = [heads * headDim, headFeatures(own)];
  const project = weights.linear(`${name}.qkv_proj`, dims, [features, features, features]);
  const [qNorm, kNorm] = ["query_layernorm", "key_layernorm"].map((part) =>
    isNormed ? rmsNorm(weights, `${name}.${part}`, headDim, eps) : undefined,
  );
  const norm = groupedNorm(weights, `${name}.g_norm`, features, eps, groups);
  const gate = weights.linear(`${name}.g_proj`, dims, features);
  const oProj = weights.linear(`${name}.o_proj`, features, dims);
  const first = own.own?.heads.first ?? 0;
  const ownSlopes = slopes(all.heads).slice(first, first + heads);
  const decays = weights.arrays.constant(
    Float32Array.from(ownSlopes, (slope) => Math.exp(-slope * (pace + 1e-5))),
  );
  // Scales values when they are written, which equals scaling outputs when they are read.
  const betas = weights.arrays.constant(new Float32Array(heads).fill(headDim ** -0.5));
  const state = states.slot(heads, headDim, headDim);
  const scan = {
    keyHeads: heads,
    columns: { queries: 0, keys: width, values: 2 * width },
    deltaRule: false,
  };
  return (input, step, { norm: before, residual } = {}) => {
    const x = before ? before(input) : input;
    const [q, k, v] = split(project(x), 3) as [MlxArray, MlxArray, MlxArray];
    const placed = (part: MlxArray, headNorm: typeof qNorm) => {
      const apart = reshape(part, [-1, heads, headDim]);
      const turned = rotated(headNorm ? headNorm(apart) : apart, rope, step.positions());
      return reshape(turned, [-1, width]);
    };
    const rows = concatenate([placed(q, qNorm), placed(k, kNorm), v], -1);
    const none = zeros([x.shape[0]!, 1]);
    const gates = { decays: add(none, decays), betas: add(none, betas) }; // (T, heads)
    const read = step.scan(state, { x: rows, gates }, scan);
    return oProj(multiply(norm(read), sigmoid(gate(x))), { residual });
  };
}

/** Returns ALiBi's slopes: a geometric series. If `heads` is not a power of two, slopes in between are appended. */
function slopes(heads: number): number[] {
  const series = (count: number) =>
    Array.from({ length: count }, (_, i) => 2 ** (-(2 ** -(Math.log2(count) - 3)) * (i + 1)));
  const whole = 2 ** Math.floor(Math.log2(heads));
  const between = series(2 * whole).filter((_, i) => i % 2 === 0);
  return [...series(whole), ...between.slice(0, heads - whole)];
}
