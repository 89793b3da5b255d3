// How the two halves of an MLP's inside become one.
import type { MlxArray } from "../mlx/array.ts";
import { gate as gated, isOwn } from "../mlx/cpu.ts";
import { add, multiply, power, sigmoid, tanh } from "../mlx/ops.ts";

export type Gating = (gate: MlxArray, up: MlxArray) => MlxArray;

export function swiglu(gate: MlxArray, up: MlxArray): MlxArray {
  if (isOwn(gate)) return gated("silu", gate, up);
  return multiply(multiply(gate, sigmoid(gate)), up);
}

/** With GELU, approximated by tanh. */
export function geglu(gate: MlxArray, up: MlxArray): MlxArray {
  if (isOwn(gate)) return gated("gelu", gate, up);
  const cubic = multiply(power(gate, 3), 0.044715);
  const inner = multiply(add(gate, cubic), Math.sqrt(2 / Math.PI));
  return multiply(multiply(multiply(gate, 0.5), add(tanh(inner), 1)), up);
}
