// What MLPs put between their products: by the names that configurations have for it, or as a family has it.
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

/** x times the share of a normal distribution below it. */
const gelu: Activation = (x) =>
  multiply(x, add(multiply(erf(multiply(x, Math.SQRT1_2)), 0.5), 0.5));

/** The same as tanh approximates it. */
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

/** `key` of the configuration has the name. */
export function activationOf(name: string, key: string): Activation {
  const found = activations.get(name);
  if (found) return found;
  const known = [...activations.keys()].join(", ");
  throw new LoadError(`config.json: ${key}: there is no ${quoted(name)}; there are ${known}`);
}

/** activation(gate) * up, in one operation where devices have one. */
export function gatingOf(name: string, key: string): Gating {
  const activation = activationOf(name, key);
  if (activation === silu) return "swiglu";
  if (activation === tanhGelu) return "geglu";
  return (gate, up) => multiply(activation(gate), up);
}

/** silu(gate) * up within limits, as Step 3.5 has it: the gate has no lower one. None or 0 is no limit. */
export function limitedSwiglu(limit: number | null | undefined): Gating {
  if (!limit) return "swiglu";
  return (gate, up) => multiply(minimum(silu(gate), limit), clip(up, -limit, limit));
}

/** As gpt-oss has it: the gate has no lower limit, and the other half is moved by 1. */
export function clippedSwiglu(limit: number): Gating {
  return (gate, up) => {
    const clipped = minimum(gate, limit);
    const gated = multiply(clipped, sigmoid(multiply(clipped, 1.702)));
    return multiply(add(clip(up, -limit, limit), 1), gated);
  };
}

/** As Kimi K3 has it: both halves are squeezed, and the gate is multiplied by its sigmoid. */
export function situ(beta: number, most: number | null | undefined): Gating {
  const squeezed = (x: MlxArray, cap: number) => multiply(tanh(multiply(x, 1 / cap)), cap);
  return (gate, up) => {
    const [g, u] = [astype(gate, "float32"), astype(up, "float32")];
    const opened = multiply(squeezed(g, beta), sigmoid(g));
    return astype(multiply(opened, most == null ? u : squeezed(u, most)), up.dtype);
  };
}

/** As Gemma 3n has it: only gates open that are so many standard deviations above the mean of all ranks' gates. */
export function sparseGeglu(weights: Weights, width: Extent, deviations: number): Gating {
  const total = weights.totals(width) ?? ((x) => x);
  const mean = (x: MlxArray) => divide(total(sum(x, -1, true)), wholeOf(width));
  return (gates, ups) => {
    const apart = subtract(gates, mean(gates));
    const deviation = power(mean(multiply(apart, apart)), 0.5);
    const open = maximum(subtract(apart, multiply(deviation, deviations)), 0);
    return weights.device.gate("geglu", open, ups);
  };
}

/** The number of standard deviations above the mean that this share of a normal distribution is below. */
export function normalQuantile(share: number): number {
  using _ = new Scope();
  return multiply(erfinv(array(Float32Array.of(2 * share - 1))), 2 ** 0.5).numbers()[0]!;
}

export type Slope = "alpha_p" | "alpha_n" | "beta" | "eps";

/** As Apertus has it, with slopes (1) that it learns: a parabola above 0, an exponential below, a line through both. */
export function xielu(weights: Weights, slope: (part: Slope) => MlxArray): Activation {
  const scalar = (make: () => MlxArray) => weights.computed(() => reshape(make(), []));
  const [stored, eps] = [slope("beta"), slope("eps")];
  const [above, below] = [slope("alpha_p"), slope("alpha_n")];
  const beta = scalar(() => stored);
  const least = scalar(() => eps);
  const rise = scalar(() => logAddExp(above, 0));
  const fall = scalar(() => add(logAddExp(below, 0), stored));
  return (x) => {
    const curve = where(
      greater(x, 0),
      multiply(multiply(x, x), rise),
      multiply(subtract(expm1(minimum(x, least)), x), fall),
    );
    return add(curve, multiply(x, beta));
  };
}
