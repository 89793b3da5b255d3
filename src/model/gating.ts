// How the two halves of an MLP's inside become one.
import type { MlxArray } from "../mlx/array.ts";
import { Compiled } from "../mlx/compile.ts";
import { gate as gated, isOwn } from "../mlx/cpu.ts";
import { add, multiply, power, sigmoid, tanh } from "../mlx/ops.ts";

export type Gating = (gate: MlxArray, up: MlxArray) => MlxArray;

export const swiglu = gating("silu", (gate, up) => multiply(multiply(gate, sigmoid(gate)), up));

/** With GELU, approximated by tanh. */
export const geglu = gating("gelu", (gate, up) => {
  const cubic = multiply(power(gate, 3), 0.044715);
  const inner = multiply(add(gate, cubic), Math.sqrt(2 / Math.PI));
  return multiply(multiply(multiply(gate, 0.5), add(tanh(inner), 1)), up);
});

/** An operation of our own on a CPU; on a GPU compiled, once, to one kernel for all shapes. */
function gating(kind: "silu" | "gelu", plain: Gating): Gating {
  let compiled: Compiled | undefined;
  return (gate, up) => {
    if (isOwn(gate)) return gated(kind, gate, up);
    compiled ??= new Compiled(([gate, up]) => [plain(gate!, up!)], { shapeless: true });
    return compiled.call(gate, up)[0]!;
  };
}
