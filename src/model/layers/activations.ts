// Activations and gatings of MLPs, by their names in configurations or by family.
import type { Gating } from "../../device/device.ts";
import { LoadError, quoted } from "../../files/load-error.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  clip,
  divide,
  erf,
  erfinv,
  expm1,
  greater,
  logAddExp,
  maximum,
  minimum,
  multiply,
  power,
  reshape,
  sigmoid,
  subtract,
  sum,
  tanh,
  where,
} from "../../mlx/ops.ts";
import { Scope } from "../../mlx/scope.ts";
import { type Extent, wholeOf } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";

export type Activation = (x: MlxArray) => MlxArray;

/** Exact GELU: x times the normal distribution's CDF at x. */
const gelu: Activation = (x) =>
  multiply(x, add(multiply(erf(multiply(x, Math.SQRT1_2)), 0.5), 0.5));

/** GELU with the tanh approximation. */
const tanhGelu: Activation = (x) => {
  const inner = multiply(add(x, multiply(power(x, 3), 0.044715)), Math.sqrt(2 / Math.PI));
  return multiply(multiply(x, 0.5), add(tanh(inner), 1));
};

const relu: Activation = (x) => maximum(x, 0);

export const squaredRelu: Activation = (x) => {
  const positive = relu(x);
  return multiply(positive, positive);
};

const silu: Activation = (x) => multiply(x, sigmoid(x));

const activations = new Map<string, Activation>([
  ["gelu", gelu],
  ["gelu_fast", tanhGelu],
  ["gelu_new", tanhGelu],
  ["gelu_pytorch_tanh", tanhGelu],
  ["relu", relu],
  ["relu2", squaredRelu],
  ["silu", silu],
  ["swish", silu],
]);

/** Returns an activation by name. `key` is the configuration's key with this name, for errors. */
export function activationOf(name: string, key: string): Activation {
  const found = activations.get(name);
  if (found) return found;
  const known = [...activations.keys()].join(", ");
  throw new LoadError(`config.json: ${key}: there is no ${quoted(name)}; there are ${known}`);
}

/** Returns activation(gate) * up: as a name for devices' own operations ("swiglu", "geglu"), else as a function. */
export function gatingOf(name: string, key: string): Gating {
  const activation = activationOf(name, key);
  if (activation === silu) return "swiglu";
  if (activation === tanhGelu) return "geglu";
  return (gate, up) => multiply(activation(gate), up);
}

/** Gates by silu(gate) * up, as Step 3.5: up is clipped to [-limit, limit], silu(gate) to at most limit. */
export function limitedSwiglu(limit: number | null | undefined): Gating {
  if (!limit) return "swiglu";
  return (gate, up) => multiply(minimum(silu(gate), limit), clip(up, -limit, limit));
}

/** Gates as gpt-oss: silu-like with factor 1.702; gate has only an upper limit, and 1 is added to up. */
export function clippedSwiglu(limit: number): Gating {
  return (gate, up) => {
    const clipped = minimum(gate, limit);
    const gated = multiply(clipped, sigmoid(multiply(clipped, 1.702)));
    return multiply(add(clip(up, -limit, limit), 1), gated);
  };
}

/** Gates as Kimi K3: gate and up are soft-capped, and the gate is multiplied by the sigmoid of the uncapped gate. */
export function situ(beta: number, most: number | null | undefined): Gating {
  const squeezed = (x: MlxArray, cap: number) => multiply(tanh(multiply(x, 1 / cap)), cap);
  return (gate, up) => {
    const [g, u] = [astype(gate, "float32"), astype(up, "float32")];
    const opened = multiply(squeezed(g, beta), sigmoid(g));
    return astype(multiply(opened, most == null ? u : squeezed(u, most)), up.dtype);
  };
}

/** Gates as Gemma 3n: subtracts mean plus `deviations` standard deviations from gates; negative results become 0. */
export function sparseGeglu(weights: Weights, width: Extent, deviations: number): Gating {
  const total = weights.ranks.totals(width) ?? ((x) => x);
  const mean = (x: MlxArray) => divide(total(sum(x, -1, true)), wholeOf(width));
  return (gates, ups) => {
    const apart = subtract(gates, mean(gates));
    const deviation = power(mean(multiply(apart, apart)), 0.5);
    const open = maximum(subtract(apart, multiply(deviation, deviations)), 0);
    return weights.device.gate("geglu", open, ups);
  };
}

/** Returns a quantile of the standard normal distribution. */
export function normalQuantile(share: number): number {
  using _ = new Scope();
  return multiply(erfinv(array(Float32Array.of(2 * share - 1))), 2 ** 0.5).numbers()[0]!;
}

export type Slope = "alpha_p" | "alpha_n" | "beta" | "eps";

/**
 * Makes xIELU (Apertus): a parabola above 0, an exponential below, each with a learned factor, plus a linear term.
 */
export function xielu(weights: Weights, slope: (part: Slope) => MlxArray): Activation {
  const scalar = (make: () => MlxArray) => weights.arrays.computed(() => reshape(make(), []));
  const [stored, eps] = [slope("beta"), slope("eps")];
  const [above, below] = [slope("alpha_p"), slope("alpha_n")];
  const beta = scalar(() => stored);
  const least = scalar(() => eps);
  const rise = scalar(() => logAddExp(above, 0));
  const fall = scalar(() => add(logAddExp(below, 0), stored));
  return (x) => {
    const positive = multiply(multiply(x, x), rise);
    const other = multiply(subtract(expm1(minimum(x, least)), x), fall);
    const curve = where(greater(x, 0), positive, other);
    return add(curve, multiply(x, beta));
  };
}
