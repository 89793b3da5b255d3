// Implements AltUp (several hidden states per token, of which each layer computes one and predicts the others) and
// LAuReL (a low-rank branch beside attention), as in Gemma 3n.
import type { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  clip,
  concatenate,
  divide,
  expandDims,
  matmul,
  multiply,
  power,
  reshape,
  slice,
  split,
  squeeze,
  subtract,
  sum,
  swapAxes,
  tanh,
} from "../../mlx/ops.ts";
import { type BaseConfig, count, flag, integer, positive } from "../checkpoint/config.ts";
import { type Block, rmsNorm } from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";
import type { LayerParts } from "./design.ts";
import { layerInputGate } from "./layer-inputs.ts";

/** Configuration keys of AltUp and LAuReL. */
export const altUpKeys = {
  altup_num_inputs: count,
  altup_active_idx: integer,
  altup_coef_clip: positive.nullish(),
  altup_correct_scale: flag,
  laurel_rank: count,
};

type AltUpConfig = Pick<BaseConfig, "hidden_size" | "rms_norm_eps"> &
  z.infer<z.ZodObject<typeof altUpKeys>>;

type StreamsConfig = Pick<AltUpConfig, "hidden_size" | "altup_num_inputs">;

/** Expands a token's hidden state (T, D) to N states of equal magnitude: (T, N, D). */
export function spreadStreams(config: StreamsConfig, weights: Weights) {
  const spreading = projections(config, weights, "altup_projections");
  return (h: MlxArray): MlxArray => {
    const all = [h, ...spreading.map((project) => like(h, project(h)))];
    const streams = all.map((x) => expandDims(x, 1)); // (T, 1, D) each
    return concatenate(streams, 1);
  };
}

/** Averages a token's N hidden states: (T, N, D) -> (T, D). */
export function mergeStreams(config: StreamsConfig, weights: Weights) {
  const { altup_num_inputs: inputs } = config;
  const merging = projections(config, weights, "altup_unembed_projections");
  return (h: MlxArray): MlxArray => {
    const [first, ...rest] = split(h, inputs, 1).map((x) => squeeze(x, 1)) as [MlxArray];
    const all = rest.map((x, i) => like(first, merging[i]!(x)));
    const whole = all.reduce((total, x) => add(total, x), first);
    return divide(whole, inputs);
  };
}

/** Loads a projection for each hidden state but the first. */
function projections(
  { hidden_size: dims, altup_num_inputs: inputs }: StreamsConfig,
  weights: Weights,
  name: string,
): Linear[] {
  // GGUF files stack these matrices in one tensor.
  const isStacked = weights.matrices.has(`model.${name}`);
  if (isStacked) weights.matrices.check(`model.${name}`, [inputs - 1, dims, dims]);
  return Array.from({ length: inputs - 1 }, (_, i) => {
    const own = `model.${name}.${i}`;
    if (isStacked) {
      weights.matrices.pick(`model.${name}`, own, [{ first: i, count: 1 }]);
      weights.stored.reshape(`${own}.weight`, [1, dims, dims], [dims, dims]);
    }
    return weights.linear(own, dims, dims);
  });
}

/** Scales x to the RMS of `first`. */
function like(first: MlxArray, x: MlxArray): MlxArray {
  return multiply(x, divide(magnitude(first), magnitude(x)));
}

function magnitude(x: MlxArray): MlxArray {
  return power(divide(sum(multiply(x, x), -1, true), x.shape.at(-1)!), 0.5);
}

/** Builds a layer on N hidden states per token (T, N, D): only the active one passes attention, LAuReL and MLP. */
export function altUpBlock(
  config: AltUpConfig & { hidden_size_per_layer_input: number },
  weights: Weights,
  { name, mix, mlp, norms }: LayerParts,
): Block {
  const { hidden_size: dims, rms_norm_eps: eps, hidden_size_per_layer_input: each } = config;
  const altUp = makeAltUp(config, weights, `${name}.altup`);
  const left = weights.linear(`${name}.laurel.linear_left`, dims, config.laurel_rank);
  const right = weights.linear(`${name}.laurel.linear_right`, config.laurel_rank, dims);
  const laurelNorm = rmsNorm(weights, `${name}.laurel.post_laurel_norm`, dims, eps);
  const made = layerInputGate(weights, name, { dims, each, eps });
  return (x, step, input) => {
    const predicted = altUp.predict(x);
    const active = altUp.active(predicted);
    const normed = norms.attention!(active);
    const attended = add(active, norms.afterAttention!(mix(normed, step)));
    const laurel = add(normed, laurelNorm(right(left(normed))));
    const h = multiply(add(attended, laurel), 0.5 ** 0.5);
    const computed = add(h, norms.afterMlp!(mlp(norms.mlp!(h))));
    const corrected = altUp.correct(predicted, computed);
    const [first, ...others] = split(corrected, config.altup_num_inputs, 1) as [MlxArray];
    const more = expandDims(made(altUp.scaled(altUp.active(corrected)), input!), 1);
    return concatenate([first, ...others.map((other) => add(other, more))], 1);
  };
}

/** Makes AltUp's functions: predict all hidden states of a token, then correct them by the one that was computed. */
function makeAltUp(config: AltUpConfig, weights: Weights, name: string) {
  const { hidden_size: dims, rms_norm_eps: eps, altup_num_inputs: inputs } = config;
  const { altup_coef_clip: limit, altup_active_idx: at, altup_correct_scale } = config;
  const routerNorm = rmsNorm(weights, `${name}.router_norm`, dims, eps);
  const router = weights.linear(`${name}.modality_router`, dims, inputs);
  const coefficients = (part: string, outputs: number) => {
    const stored = weights.arrays.tensor(`${name}.${part}.weight`, [outputs, inputs], "float32");
    return weights.arrays.computed(() =>
      swapAxes(limit ? clip(stored, -limit, limit) : stored, 0, 1),
    );
  };
  const prediction = coefficients("prediction_coefs", inputs ** 2);
  const correction = coefficients("correction_coefs", inputs);
  const scale = weights.arrays.tensor(`${name}.correct_output_scale`, [dims]);
  const modalities = (x: MlxArray) =>
    tanh(astype(router(multiply(routerNorm(x), 1 / dims)), "float32")); // (T, N)
  const active = (x: MlxArray) => squeeze(slice(x, 1, at, at + 1), 1);
  return {
    active,
    scaled: (x: MlxArray) => (altup_correct_scale ? multiply(x, scale) : x),
    predict(x: MlxArray): MlxArray {
      const mixing = reshape(matmul(modalities(active(x)), prediction), [-1, inputs, inputs]);
      const exact = astype(x, "float32");
      return astype(add(exact, matmul(mixing, exact)), x.dtype);
    },
    correct(predicted: MlxArray, computed: MlxArray): MlxArray {
      const shares = add(matmul(modalities(computed), correction), 1); // (T, N)
      const innovation = expandDims(subtract(computed, active(predicted)), 1);
      const exact = add(multiply(innovation, expandDims(shares, -1)), predicted);
      return astype(exact, computed.dtype);
    },
  };
}
