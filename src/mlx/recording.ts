// CUDA: a compiled function that is captured as a CUDA graph at its second call, or later if capturing would stall
// streams. A replay is one launch instead of hundreds (ffi/cuda/recording.cpp). If capture fails, the compiled
// function is called.
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

/** Maximum executions to capture a graph: rehearsals until memory settles, usually two, then the captured one. */
const TAKES = 5;
/** A recording takes about as long as this many calls lose by running without one. */
const WORTH_CALLS = 16;

/** Values for one call in pinned memory, which the GPU reads without page migration. */
export function pinned(values: HostArray, shape: readonly number[] = [values.length]): MlxArray {
  const symbol = "mlx_serve_pinned";
  const dtype = codeOf(dtypeOf(values));
  return make(symbol, mlxc[symbol](out.view, values, ints(shape), shape.length, dtype));
}

/** A pinned copy: reading it on the host waits only until `x` is computed, not for the whole GPU. */
export function fetched(x: MlxArray): MlxArray {
  const symbol = "mlx_serve_fetch";
  return make(symbol, mlxc[symbol](out.view, x.handle, stream));
}

/**
 * Inputs must always have the same shapes. Outputs larger than 64 KiB are valid only for operations that are
 * evaluated before the next call.
 */
export class Recorded {
  /** Why it is not recorded, or no longer recorded. */
  failure: MlxError | undefined;
  readonly #compiled: Compiled;
  readonly #rehearsal: () => readonly MlxArray[];
  #recording: Pointer | undefined;
  #calls = 0;
  #isTried = false;

  /** `rehearsal`: inputs for trial runs before the capture. In place they may write only to scratch memory. */
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

  /** The same while streams wait: the recording is postponed until it amortizes. */
  callBeside(...inputs: readonly MlxArray[]): MlxArray[] {
    return this.#call(inputs, WORTH_CALLS);
  }

  /** Only after all of its outputs were read. */
  free(): void {
    this.#forget();
    this.#compiled.free();
  }

  /** `recordedFrom`: number of calls, of either kind, at which to record. */
  #call(inputs: readonly MlxArray[], recordedFrom: number): MlxArray[] {
    this.#calls += 1;
    if (this.#calls >= recordedFrom && !this.#isTried) this.#record();
    if (!this.#recording) return this.#compiled.call(...inputs);
    try {
      return this.#replay(this.#recording, inputs);
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
    // Private arrays that each replay copies its inputs to.
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

  /** The unevaluated outputs of all executions, in a vector that is their only owner. */
  #takes(places: readonly MlxArray[]): Pointer {
    using _ = new Scope();
    return vectorOf(Array.from({ length: TAKES }, () => this.#compiled.call(...places)).flat());
  }

  #replay(recording: Pointer, inputs: readonly MlxArray[]): MlxArray[] {
    const symbol = "mlx_serve_play";
    const status = withVector(inputs, (vector) =>
      mlxc[symbol](out.view, recording, vector, stream),
    );
    return unpackVector(takeHandle(symbol, status));
  }
}
