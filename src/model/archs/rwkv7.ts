// RWKV 7 (Goose): a state for each head from which is taken along one vector what is found with another, and no
// attention at all. Each token is mixed with the one before it.
import { z } from "zod";
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
import { squaredRelu } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { type AnyNorm, layerNorm } from "../layers.ts";
import type { Model, Step } from "../model.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.omit({ num_attention_heads: true }).extend({
  head_dim: count,
  norm_eps: z.number().positive().default(1e-5),
  a_low_rank_dim: count,
  v_low_rank_dim: count,
  gate_low_rank_dim: count,
  decay_low_rank_dim: count,
  tie_word_embeddings: z.boolean().default(false),
  max_position_embeddings: count.default(1_048_576),
});
type Config = z.infer<typeof Config>;

export function rwkv7(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, norm_eps: eps } = parsed;
  weights.rename({ "model.embeddings.": "model.embed_tokens." });
  // There are no values before the first layer's; some files have matrices for a share of them.
  weights.leaveOut(/^model\.layers\.0\.attn\.v_lora\./);
  const makeNorm = (name: string) => layerNorm(weights, name, dims, eps);
  // What all layers add to their values: those of the first.
  const first: { values?: MlxArray } = {};
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const before: AnyNorm = layer === 0 ? makeNorm(`${name}.pre_norm`) : (x) => x;
      const [timeNorm, channelNorm] = ["attn_norm", "ffn_norm"].map((part) =>
        makeNorm(`${name}.${part}`),
      ) as [AnyNorm, AnyNorm];
      const mixTime = timeMixer(parsed, weights, `${name}.attn`, layer, states, first);
      const mixChannels = channelMixer(parsed, weights, `${name}.ffn`, states);
      return (input, step) => {
        const x = before(input);
        const h = add(x, mixTime(timeNorm(x), step));
        return add(h, mixChannels(channelNorm(h), step));
      };
    },
    { norm: makeNorm("model.norm") },
  );
}

/** x (T, D) -> how the token before each differs from it; there is 0 before the first. */
function tokenShift(weights: Weights, states: LayerStates, dims: number) {
  const taps = new Float32Array(2 * dims).fill(1, 0, dims);
  const convolution = { weight: weights.constant(taps, [2, dims]) };
  const state = states.slot(1, dims);
  return (x: MlxArray, step: Step) => subtract(step.convolve(state, x, convolution), x);
}

function channelMixer(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, intermediate_size: hidden } = config;
  const shift = tokenShift(weights, states, dims);
  const share = mixed(weights, `${name}.x_k`, dims);
  const up = weights.linear(`${name}.key`, dims, hidden);
  const down = weights.linear(`${name}.value`, hidden, dims);
  return (x: MlxArray, step: Step) => down(squaredRelu(up(share(x, shift(x, step)))));
}

/** x with a share, for each feature, of what the token before differs by. */
function mixed(weights: Weights, name: string, dims: number) {
  const share = vector(weights, name, dims);
  return (x: MlxArray, difference: MlxArray) => add(x, multiply(difference, share));
}

/** Files have axes of size 1 before it, or the axis of heads. */
function vector(weights: Weights, name: string, dims: number): MlxArray {
  weights.arrange([name], ([stored]) => {
    const fits = stored!.shape.reduce((a, b) => a * b) === dims;
    return { ...stored!, shape: fits ? [dims] : stored!.shape };
  });
  return weights.tensor(name, [dims]);
}

/** Two matrices with a smaller vector between them. */
function lowRank(
  weights: Weights,
  name: string,
  dims: number,
  rank: number,
  activation: (x: MlxArray) => MlxArray = (x) => x,
): Linear {
  const narrow = weights.linear(`${name}.lora.0`, dims, rank);
  const wide = weights.linear(`${name}.lora.2`, rank, dims);
  return (x) => wide(activation(narrow(x)));
}

function timeMixer(
  config: Config,
  weights: Weights,
  name: string,
  layer: number,
  states: LayerStates,
  first: { values?: MlxArray },
) {
  const { hidden_size: dims, head_dim: headDim, norm_eps } = config;
  const heads = dims / headDim;
  if (!Number.isInteger(heads)) {
    throw new LoadError(`config.json: head_dim: ${headDim} features do not divide ${dims}`);
  }
  splitShares(weights, name);
  const shift = tokenShift(weights, states, dims);
  const [forR, forW, forK, forV, forA, forG] = ["r", "w", "k", "v", "a", "g"].map((part) =>
    mixed(weights, `${name}.x_${part}`, dims),
  ) as [Mix, Mix, Mix, Mix, Mix, Mix];
  const [rProj, kProj, vProj, oProj] = ["r", "k", "v", "o"].map((part) =>
    weights.linear(`${name}.${part}_proj`, dims, dims),
  ) as [Linear, Linear, Linear, Linear];
  const toDecays = lowRank(weights, `${name}.w_lora`, dims, config.decay_low_rank_dim, tanh);
  const toRates = lowRank(weights, `${name}.a_lora`, dims, config.a_low_rank_dim);
  const toGates = lowRank(weights, `${name}.g_lora`, dims, config.gate_low_rank_dim, sigmoid);
  const toShares =
    layer > 0 ? lowRank(weights, `${name}.v_lora`, dims, config.v_low_rank_dim) : undefined;
  const [keyScale, keyRate, bonus] = ["k_k", "k_a", "r_k"].map((part) =>
    vector(weights, `${name}.${part}`, dims),
  ) as [MlxArray, MlxArray, MlxArray];
  const [weight, bias] = ["weight", "bias"].map((part) =>
    vector(weights, `${name}.g_norm.${part}`, dims),
  ) as [MlxArray, MlxArray];
  const state = states.slot(heads, headDim, headDim);
  const scan = {
    keyHeads: heads,
    columns: { queries: 0, keys: dims, values: 2 * dims },
    erasing: { find: 3 * dims, put: 4 * dims },
    deltaRule: false,
  };
  const byHead = (x: MlxArray) => reshape(x, [-1, heads, headDim]);
  const whole = (x: MlxArray) => reshape(x, [-1, dims]);
  return (x: MlxArray, step: Step) => {
    const difference = shift(x, step);
    const [r, raw, v] = [
      rProj(forR(x, difference)),
      kProj(forK(x, difference)),
      forV(x, difference),
    ];
    const own = vProj(v);
    if (layer === 0) first.values = own;
    const values = toShares
      ? add(own, multiply(subtract(first.values!, own), sigmoid(toShares(v))))
      : own;
    const rates = sigmoid(toRates(forA(x, difference)));
    const decays = exp(
      multiply(sigmoid(astype(toDecays(forW(x, difference)), "float32")), -0.606531),
    );
    const erased = whole(unit(byHead(multiply(raw, keyScale))));
    const keys = multiply(raw, add(multiply(subtract(rates, 1), keyRate), 1));
    // It is found in the state before it has decayed, and ours is found behind.
    const find = astype(divide(astype(erased, "float32"), decays), x.dtype);
    const rows = concatenate([r, keys, values, find, multiply(erased, rates)], -1);
    const betas = add(zeros([x.shape[0]!, heads]), 1);
    const read = step.scan(state, { x: rows, gates: { decays, betas } }, scan);
    const even = whole(normed(byHead(read), undefined, undefined, headDim * norm_eps));
    const direct = sum(byHead(multiply(multiply(r, keys), bonus)), -1, true); // (T, heads, 1)
    const out = add(add(multiply(even, weight), bias), whole(multiply(byHead(values), direct)));
    return oProj(multiply(out, toGates(forG(x, difference))));
  };
}

/** GGUF files have all shares of a layer in one tensor. */
function splitShares(weights: Weights, name: string): void {
  if (weights.shapeOf(`${name}.x_rwkvag.weight`)?.[0] !== 6) return;
  for (const [first, part] of ["r", "w", "k", "v", "a", "g"].entries()) {
    weights.pick(`${name}.x_rwkvag`, `${name}.x_${part}`, [{ first, count: 1 }]);
    weights.rename({ [`${name}.x_${part}.weight`]: `${name}.x_${part}` });
  }
}

type Mix = ReturnType<typeof mixed>;

/** Each head as long as 1. */
function unit(x: MlxArray): MlxArray {
  return divide(x, maximum(power(sum(multiply(x, x), -1, true), 0.5), 1e-7));
}
