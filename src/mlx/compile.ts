// A function of arrays that MLX traces once per input shape and replays afterwards: one FFI call instead
// of one per operation. On a CPU nothing is compiled, and every call traces again (runtime.ts).
import { check, ownHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { handleList, nativeCallback, type Pointer, writeHandle } from "../../ffi/memory.ts";
import { Slot } from "../../ffi/slot.ts";
import { type MlxArray, unpackVector, vectorArrays, withVector } from "./array.ts";
import { Scope } from "./scope.ts";

export class Compiled {
  readonly #trace: (inputs: MlxArray[]) => readonly MlxArray[];
  readonly #callback = nativeCallback((result, inputs) => this.#traced(result, inputs));
  // Not the shared slot: while the call that fills this slot runs, the trace makes calls that use the shared one.
  readonly #slot = new Slot();
  #closure: Pointer | null;
  #failure: unknown;

  /** `shapeless`: replays one trace for all shapes, so the function must never read a shape. */
  constructor(
    trace: (inputs: MlxArray[]) => readonly MlxArray[],
    { shapeless = false }: { shapeless?: boolean } = {},
  ) {
    this.#trace = trace;
    const plain = ownHandle("mlx_closure_new_func", mlxc.mlx_closure_new_func(this.#callback.ptr));
    const { view } = this.#slot;
    check("mlx_compile", mlxc.mlx_compile(view, plain, shapeless));
    this.#closure = this.#slot.takePointer();
    mlxc.mlx_closure_free(plain);
  }

  call(...inputs: readonly MlxArray[]): MlxArray[] {
    this.#failure = undefined;
    const status = withVector(inputs, (vector) =>
      mlxc.mlx_closure_apply(this.#slot.view, this.#closure, vector),
    );
    if (this.#failure) throw this.#failure;
    check("mlx_closure_apply", status);
    return unpackVector(this.#slot.takePointer());
  }

  free(): void {
    mlxc.mlx_closure_free(this.#closure);
    this.#closure = null;
    this.#callback.close();
  }

  [Symbol.dispose](): void {
    this.free();
  }

  /** Traces the function; MLX calls it. An exception must not cross native code, so `call` rethrows it. */
  #traced(result: Pointer, inputs: Pointer): number {
    try {
      using _ = new Scope();
      const outputs = this.#trace(vectorArrays(inputs));
      const symbol = "mlx_vector_array_new_data";
      const handles = handleList(outputs.map((output) => output.handle!));
      writeHandle(result, ownHandle(symbol, mlxc[symbol](handles, handles.length)));
      return 0;
    } catch (error) {
      this.#failure = error;
      return 1;
    }
  }
}
