// On a CPU: a function of arrays whose operations are kept when it is called again, and run as one (ffi/cpu/sequence.cpp).
// Where some of them are MLX's own it is built anew each time.
import { check, takeHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import type { Pointer } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import { evaluate, type MlxArray, unpackVector, withVector } from "./array.ts";
import { add } from "./ops.ts";
import { Scope } from "./scope.ts";
import { stream } from "./stream.ts";

/**
 * Inputs always have the same shapes. Of what comes out, all that is larger than 64 KiB is only valid for operations that
 * are evaluated before the next call of any.
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

  /** After all that it has made was read. */
  free(): void {
    const symbol = "mlx_serve_sequence_free";
    if (this.#sequence) check(symbol, mlxc[symbol](this.#sequence));
    this.#sequence = undefined;
  }

  #keep(inputs: readonly MlxArray[]): void {
    using _ = new Scope();
    // Arrays of its own, where the inputs of every call are copied to.
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

/** Asked before: of several engines in a process an error is told to the last (ffi/error.ts). */
function areOwn(outputs: Pointer): boolean {
  const symbol = "mlx_serve_are_own";
  check(symbol, mlxc[symbol](answer, outputs));
  return answer[0] === 1;
}
