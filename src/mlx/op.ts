// Calls one operation of mlx-c. All operations take the output slot first and the stream last, and the result becomes
// an array of the open scope.
import { type SymbolName, takeHandle } from "../../ffi/error.ts";
import { type Mlxc, mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import type { ArrayOperation, ListOperation } from "../../ffi/symbols.ts";
import { type MlxArray, make, unpackVector } from "./array.ts";
import { stream } from "./stream.ts";

type Inputs<S extends SymbolName> =
  Parameters<Mlxc[S]> extends [unknown, ...infer Middle, unknown] ? Middle : never;

/** Calls a function `int mlx_f(mlx_array* res, inputs..., mlx_stream)`. */
export function op<S extends ArrayOperation>(symbol: S, ...inputs: Inputs<S>): MlxArray {
  return make(symbol, call(symbol, inputs));
}

/** Calls a function `int mlx_f(mlx_vector_array* res, inputs..., mlx_stream)`. */
export function opList<S extends ListOperation>(symbol: S, ...inputs: Inputs<S>): MlxArray[] {
  return unpackVector(takeHandle(symbol, call(symbol, inputs)));
}

function call(symbol: SymbolName, inputs: unknown[]): number {
  return (mlxc[symbol] as (...args: unknown[]) => number)(out.view, ...inputs, stream);
}
