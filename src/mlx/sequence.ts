// A function on a CPU whose operations are recorded at its second call, and from then on run as one sequence
// (ffi/cpu/sequence.cpp). If any of the operations is MLX's own, the graph is built anew at each call.
import { check, takeHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import type { Pointer } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import { evaluate, type MlxArray, unpackVector, withVector } from "./array.ts";
import { add } from "./ops.ts";
import { Scope } from "./scope.ts";
import { stream } from "./stream.ts";

/**
 * A recorded function of arrays. Inputs must always have the same shapes. Outputs larger than 64 KiB are valid only
 * for operations that are evaluated before the next call of any Sequenced.
 */
export class Sequenced {
  readonly #build: (inputs: MlxArray[]) => readonly MlxArray[];
  #sequence: Pointer | undefined;
  #calls = 0;

  constructor(build: (inputs: MlxArray[]) => readonly MlxArray[]) {
    this.#build = build;
  }

  get isKept(): boolean {
    return this.#sequence !== undefined;
  }

  call(...inputs: readonly MlxArray[]): MlxArray[] {
    this.#calls += 1;
    if (this.#calls === 2) this.#keep(inputs);
    if (!this.#sequence) return [...this.#build([...inputs])];
    const symbol = "mlx_serve_sequence_run";
    const status = withVector(inputs, (vector) =>
      mlxc[symbol](out.view, this.#sequence!, vector, stream),
    );
    return unpackVector(takeHandle(symbol, status));
  }

  /** Frees the sequence. Call it only after all of its outputs were read. */
  free(): void {
    const symbol = "mlx_serve_sequence_free";
    if (this.#sequence) check(symbol, mlxc[symbol](this.#sequence));
    this.#sequence = undefined;
  }

  #keep(inputs: readonly MlxArray[]): void {
    using _ = new Scope();
    // Private arrays to which each run copies its inputs.
    const places = inputs.map((input) => add(input, 0));
    evaluate(...places);
    const outputs = this.#build(places);
    withVector(outputs, (to) => {
      if (!areOwn(to)) return;
      const symbol = "mlx_serve_sequence_new";
      const status = withVector(places, (from) => mlxc[symbol](out.view, from, to));
      this.#sequence = takeHandle(symbol, status);
    });
  }
}

const answer = new Uint8Array(1);

/** Whether all operations are ours. Recording others fails, but the error would go to the last engine's handler. */
function areOwn(outputs: Pointer): boolean {
  const symbol = "mlx_serve_are_own";
  check(symbol, mlxc[symbol](answer, outputs));
  return answer[0] === 1;
}
