// On CUDA: a compiled function that is recorded when it is called again, or later where streams would wait for that; one
// launch instead of some hundreds (ffi/cuda/recording.cpp). Where it cannot be recorded it stays a compiled function.
import { check, MlxError, takeHandle } from "../../ffi/error.ts";
import { has, mlxc } from "../../ffi/lib.ts";
import type { Pointer } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import {
  evaluate,
  ints,
  type MlxArray,
  make,
  unpackVector,
  vectorOf,
  withVector,
} from "./array.ts";
import { Compiled } from "./compile.ts";
import { codeOf, dtypeOf, type HostArray } from "./dtype.ts";
import { add } from "./ops.ts";
import { Scope } from "./scope.ts";
import { stream } from "./stream.ts";

/** Two rehearsals are enough for most; the last is captured. */
const TAKES = 5;
/** A recording takes about as long as so many calls lose by not being recorded. */
const WORTH_CALLS = 16;

/** Values for one call, in memory that the GPU reads without pages being moved. */
export function pinned(values: HostArray): MlxArray {
  const symbol = "mlx_serve_pinned";
  const dtype = codeOf(dtypeOf(values));
  return make(symbol, mlxc[symbol](out.view, values, ints([values.length]), 1, dtype));
}

/** A copy that the host reads without the GPU being waited for longer than for what makes it. */
export function fetched(x: MlxArray): MlxArray {
  const symbol = "mlx_serve_fetch";
  return make(symbol, mlxc[symbol](out.view, x.handle, stream));
}

/**
 * Inputs always have the same shapes. Of what comes out, all that is larger than 64 KiB is only valid for
 * operations that are evaluated before the next call.
 */
export class Recorded {
  /** Why it is not recorded, or no longer. */
  failure: MlxError | undefined;
  readonly #compiled: Compiled;
  readonly #rehearsal: () => readonly MlxArray[];
  #recording: Pointer | undefined;
  #calls = 0;
  #isTried = false;

  /** Before it is captured it is rehearsed, with these inputs: what it writes in place must be nobody's. */
  constructor(
    trace: (inputs: MlxArray[]) => readonly MlxArray[],
    rehearsal: () => readonly MlxArray[],
  ) {
    this.#compiled = new Compiled(trace);
    this.#rehearsal = rehearsal;
  }

  get isRecorded(): boolean {
    return this.#recording !== undefined;
  }

  call(...inputs: readonly MlxArray[]): MlxArray[] {
    return this.#call(inputs, 2);
  }

  /** With streams that wait for it, and would for a recording. */
  callBeside(...inputs: readonly MlxArray[]): MlxArray[] {
    return this.#call(inputs, WORTH_CALLS);
  }

  /** After all that it has made was read. */
  free(): void {
    this.#forget();
    this.#compiled.free();
  }

  /** From so many calls on, of either kind, it is recorded. */
  #call(inputs: readonly MlxArray[], recordedFrom: number): MlxArray[] {
    this.#calls += 1;
    if (this.#calls >= recordedFrom && !this.#isTried) this.#record();
    if (!this.#recording) return this.#compiled.call(...inputs);
    try {
      return this.#play(this.#recording, inputs);
    } catch (error) {
      if (!(error instanceof MlxError)) throw error;
      this.failure = error;
      this.#forget();
      return this.#compiled.call(...inputs);
    }
  }

  #forget(): void {
    const symbol = "mlx_serve_recording_free";
    if (this.#recording) check(symbol, mlxc[symbol](this.#recording));
    this.#recording = undefined;
  }

  #record(): void {
    this.#isTried = true;
    if (!has("mlx_serve_recording_new")) return;
    using _ = new Scope();
    // Arrays of its own, where the inputs of every call are copied to.
    const places = this.#rehearsal().map((input) => add(input, 0));
    evaluate(...places);
    const takes = this.#takes(places);
    const symbol = "mlx_serve_recording_new";
    try {
      const status = withVector(places, (vector) =>
        mlxc[symbol](out.view, vector, takes, TAKES, stream),
      );
      this.#recording = takeHandle(symbol, status);
    } catch (error) {
      if (!(error instanceof MlxError)) throw error;
      this.failure = error;
    } finally {
      mlxc.mlx_vector_array_free(takes);
    }
  }

  /** The outputs, to be rehearsed and then captured, in a list that is their only holder. */
  #takes(places: readonly MlxArray[]): Pointer {
    using _ = new Scope();
    return vectorOf(Array.from({ length: TAKES }, () => this.#compiled.call(...places)).flat());
  }

  #play(recording: Pointer, inputs: readonly MlxArray[]): MlxArray[] {
    const symbol = "mlx_serve_play";
    const status = withVector(inputs, (vector) =>
      mlxc[symbol](out.view, recording, vector, stream),
    );
    return unpackVector(takeHandle(symbol, status));
  }
}
