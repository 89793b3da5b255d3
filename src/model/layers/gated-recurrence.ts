// Builds RG-LRU, a gated linear recurrence per channel after a short convolution, as in Griffin.
import type { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  concatenate,
  exp,
  expandDims,
  lessEqual,
  logAddExp,
  maximum,
  multiply,
  negative,
  power,
  sigmoid,
  where,
  zeros,
} from "../../mlx/ops.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent, times } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { activationOf } from "./activations.ts";
import type { AttentionBlock } from "./layers.ts";
import { convolution } from "./recurrent-layers.ts";

/** Configuration keys of the recurrence. */
export const recurrenceKeys = { conv1d_width: count.default(4) };

type RecurrenceConfig = Pick<BaseConfig, "hidden_size" | "num_attention_heads"> &
  z.infer<z.ZodObject<typeof recurrenceKeys>>;

/** Minimum number of key features that kernels read. A channel's recurrence needs one; the others are zero. */
const KEYS = 16;

/** Builds a layer: linear_x, conv_1d and rg_lru make its output, which linear_y gates and linear_out projects. */
export function gatedRecurrence(
  config: RecurrenceConfig,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, conv1d_width: taps } = config;
  const headDim = dims / config.num_attention_heads;
  const channels = weights.ranks.divide(dims, { unit: headDim, inputOf: [`${name}.linear_out`] });
  const gate = weights.linear(`${name}.linear_y`, dims, channels);
  const project = weights.linear(`${name}.linear_x`, dims, channels);
  const outProj = weights.linear(`${name}.linear_out`, channels, dims);
  const gelu = activationOf("gelu_pytorch_tanh", "hidden_activation");
  const convolved = convolution(weights, `${name}.conv_1d`, channels, taps);
  const inputs = states.slot(taps - 1, countOf(channels));
  const recur = recurrence(weights, `${name}.rg_lru`, states, channels, headDim);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const read = recur(step.convolve(inputs, project(x), convolved), step);
    return outProj(multiply(read, gelu(gate(x))), { residual });
  };
}

/** Computes state = decay * state + sqrt(1 - decay^2) * gated input per channel. Both gates depend on the input. */
function recurrence(
  weights: Weights,
  name: string,
  states: LayerStates,
  channels: Extent,
  headDim: number,
) {
  const [width, heads] = [countOf(channels), times(channels, 1 / headDim)];
  const gateOf = (part: string) => {
    weights.stored.rename({ [`${name}.${part}_weight`]: `${name}.${part}.weight` });
    const bias = weights.part(`${name}.${part}_bias`, channels);
    const product = weights.byHead(`${name}.${part}`, heads, headDim, headDim, {
      isTransposed: true,
    });
    return (x: MlxArray) => sigmoid(add(product({ rows: x, first: 0, stride: headDim }), bias));
  };
  const [inputGate, recurrentGate] = [gateOf("input_gate"), gateOf("recurrent_gate")];
  const stored = weights.part(`${name}.recurrent_param`, channels, [], "float32");
  const rate = weights.arrays.computed(() => multiply(logAddExp(stored, 0), -8));
  const unit = weights.arrays.constant(new Float32Array(KEYS).fill(1, 0, 1));
  const state = states.slot(width, 1, KEYS);
  const scan = {
    keyHeads: 1,
    columns: { values: 0, keys: width, queries: width },
    deltaRule: false,
  };
  return (x: MlxArray, step: Step) => {
    const powers = multiply(astype(recurrentGate(x), "float32"), rate); // (T, channels)
    const rest = maximum(add(negative(exp(multiply(powers, 2))), 1), 0);
    // The first token of a sequence has no previous state, so its input is not scaled.
    const isFirst = expandDims(lessEqual(step.positions(), 0), 1);
    const share = where(isFirst, add(zeros(rest.shape), 1), power(rest, 0.5));
    const taken = multiply(multiply(x, inputGate(x)), astype(share, x.dtype));
    const units = add(zeros([x.shape[0]!, 1], x.dtype), astype(unit, x.dtype));
    const gates = { decays: exp(powers), betas: add(zeros(powers.shape), 1) };
    return step.scan(state, { x: concatenate([taken, units], -1), gates }, scan);
  };
}
