// What MLPs put between their products, by the names that configurations have for it.
import type { Gating } from "../device/device.ts";
import { LoadError, quoted } from "../files/load-error.ts";
import type { MlxArray } from "../mlx/array.ts";
import { add, erf, maximum, multiply, power, sigmoid, tanh } from "../mlx/ops.ts";

export type Activation = (x: MlxArray) => MlxArray;

/** x times the share of a normal distribution below it. */
const gelu: Activation = (x) =>
  multiply(x, add(multiply(erf(multiply(x, Math.SQRT1_2)), 0.5), 0.5));

/** The same as tanh approximates it. */
const tanhGelu: Activation = (x) => {
  const inner = multiply(add(x, multiply(power(x, 3), 0.044715)), Math.sqrt(2 / Math.PI));
  return multiply(multiply(x, 0.5), add(tanh(inner), 1));
};

export const relu: Activation = (x) => maximum(x, 0);

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
