// Builds RWKV 7's mixers. The time mixer has a state per head; a step removes the value found along one vector and
// writes along another. The channel mixer is an MLP. Both mix each token with the previous one.
import type { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { layerNorm as normed } from "../../mlx/fast.ts";
import {
  add,
  astype,
  concatenate,
  divide,
  exp,
  maximum,
  multiply,
  power,
  reshape,
  sigmoid,
  subtract,
  sum,
  tanh,
  zeros,
} from "../../mlx/ops.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { squaredRelu } from "./activations.ts";
import type { Crossing } from "./crossings.ts";
import { delayed } from "./recurrent-layers.ts";

/** Configuration keys of RWKV 7. */
export const rwkvKeys = {
  head_dim: count,
  a_low_rank_dim: count,
  v_low_rank_dim: count,
  gate_low_rank_dim: count,
  decay_low_rank_dim: count,
};

type RwkvConfig = Pick<BaseConfig, "hidden_size" | "intermediate_size" | "rms_norm_eps"> &
  z.infer<z.ZodObject<typeof rwkvKeys>>;

/** Returns a function: x (T, D) -> previous token minus x. The token before the first counts as 0. */
function tokenShift(weights: Weights, states: LayerStates, dims: number) {
  const before = delayed(weights, states, Array(dims).fill(1));
  return (x: MlxArray, step: Step) => subtract(before(x, step), x);
}

export function channelMixer(
  config: RwkvConfig,
  weights: Weights,
  name: string,
  states: LayerStates,
) {
  const { hidden_size: dims, intermediate_size: hidden } = config;
  const shift = tokenShift(weights, states, dims);
  const share = mixed(weights, `${name}.x_k`, dims);
  const own = weights.ranks.divide(hidden, { inputOf: [`${name}.value`] });
  const up = weights.linear(`${name}.key`, dims, own);
  const down = weights.linear(`${name}.value`, own, dims);
  return (x: MlxArray, step: Step) => down(squaredRelu(up(share(x, shift(x, step)))));
}

/** Returns a function that moves x towards the previous token, by a learned share of the difference per feature. */
function mixed(weights: Weights, name: string, dims: number) {
  const share = weights.arrays.vector(name, dims);
  return (x: MlxArray, difference: MlxArray) => add(x, multiply(difference, share));
}

/** Loads two matrices with a low-rank vector between them. */
function lowRank(
  weights: Weights,
  name: string,
  { dims, rank, outputs }: { dims: number; rank: number; outputs: Extent },
  activation: (x: MlxArray) => MlxArray = (x) => x,
): Linear {
  const narrow = weights.linear(`${name}.lora.0`, dims, rank);
  const wide = weights.linear(`${name}.lora.2`, rank, outputs);
  return (x) => wide(activation(narrow(x)));
}

export function timeMixer(
  config: RwkvConfig,
  weights: Weights,
  name: string,
  layer: number,
  states: LayerStates,
  first: Crossing,
) {
  const { hidden_size: dims, head_dim: headDim, rms_norm_eps: eps } = config;
  if (dims % headDim !== 0) {
    throw new LoadError(`config.json: head_dim: ${headDim} features do not divide ${dims}`);
  }
  const outputs = weights.ranks.divide(dims, { unit: headDim, inputOf: [`${name}.o_proj`] });
  const width = countOf(outputs);
  const heads = width / headDim;
  splitShares(weights, name);
  const shift = tokenShift(weights, states, dims);
  const [forR, forW, forK, forV, forA, forG] = ["r", "w", "k", "v", "a", "g"].map((part) =>
    mixed(weights, `${name}.x_${part}`, dims),
  ) as [Mix, Mix, Mix, Mix, Mix, Mix];
  const [rProj, kProj, vProj] = ["r", "k", "v"].map((part) =>
    weights.linear(`${name}.${part}_proj`, dims, outputs),
  ) as [Linear, Linear, Linear];
  const oProj = weights.linear(`${name}.o_proj`, outputs, dims);
  const sizes = (rank: number) => ({ dims, rank, outputs });
  const toDecays = lowRank(weights, `${name}.w_lora`, sizes(config.decay_low_rank_dim), tanh);
  const toRates = lowRank(weights, `${name}.a_lora`, sizes(config.a_low_rank_dim));
  const toGates = lowRank(weights, `${name}.g_lora`, sizes(config.gate_low_rank_dim), sigmoid);
  const toShares =
    layer > 0 ? lowRank(weights, `${name}.v_lora`, sizes(config.v_low_rank_dim)) : undefined;
  const [keyScale, keyRate, bonus] = ["k_k", "k_a", "r_k"].map((part) =>
    weights.part(`${name}.${part}`, outputs),
  ) as [MlxArray, MlxArray, MlxArray];
  const [weight, bias] = ["weight", "bias"].map((part) =>
    weights.part(`${name}.g_norm.${part}`, outputs),
  ) as [MlxArray, MlxArray];
  const state = states.slot(heads, headDim, headDim);
  const scan = {
    keyHeads: heads,
    columns: { queries: 0, keys: width, values: 2 * width },
    erasing: { find: 3 * width, put: 4 * width },
    deltaRule: false,
  };
  const byHead = (x: MlxArray) => reshape(x, [-1, heads, headDim]);
  const whole = (x: MlxArray) => reshape(x, [-1, width]);
  return (x: MlxArray, step: Step) => {
    const difference = shift(x, step);
    const r = rProj(forR(x, difference));
    const raw = kProj(forK(x, difference));
    const v = forV(x, difference);
    const own = vProj(v);
    if (layer === 0) first.value = own;
    const values = toShares
      ? add(own, multiply(subtract(first.value!, own), sigmoid(toShares(v))))
      : own;
    const rates = sigmoid(toRates(forA(x, difference)));
    const decays = exp(
      multiply(sigmoid(astype(toDecays(forW(x, difference)), "float32")), -0.606531),
    );
    const erased = whole(unit(byHead(multiply(raw, keyScale))));
    const keys = multiply(raw, add(multiply(subtract(rates, 1), keyRate), 1));
    // Divides by the decay: RWKV reads the value to erase before the state decays, but our scan reads it afterwards.
    const find = astype(divide(astype(erased, "float32"), decays), x.dtype);
    const rows = concatenate([r, keys, values, find, multiply(erased, rates)], -1);
    const betas = add(zeros([x.shape[0]!, heads]), 1);
    const read = step.scan(state, { x: rows, gates: { decays, betas } }, scan);
    const even = whole(normed(byHead(read), undefined, undefined, headDim * eps));
    const direct = sum(byHead(multiply(multiply(r, keys), bonus)), -1, true); // (T, heads, 1)
    const out = add(add(multiply(even, weight), bias), whole(multiply(byHead(values), direct)));
    return oProj(multiply(out, toGates(forG(x, difference))));
  };
}

/** Splits the mixing shares of a layer, which GGUF files have in one tensor. */
function splitShares(weights: Weights, name: string): void {
  if (weights.stored.get(`${name}.x_rwkvag.weight`)?.shape[0] !== 6) return;
  for (const [first, part] of ["r", "w", "k", "v", "a", "g"].entries()) {
    weights.matrices.pick(`${name}.x_rwkvag`, `${name}.x_${part}`, [{ first, count: 1 }]);
    weights.stored.rename({ [`${name}.x_${part}.weight`]: `${name}.x_${part}` });
  }
}

type Mix = ReturnType<typeof mixed>;

/** Scales each head to L2 norm 1. */
function unit(x: MlxArray): MlxArray {
  return divide(x, maximum(power(sum(multiply(x, x), -1, true), 0.5), 1e-7));
}
