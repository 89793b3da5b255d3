// A compiled function that is captured as a CUDA graph at its second call, or later if capturing would stall streams.
// A replay is one launch instead of hundreds (ffi/cuda/recording.cpp). If capture fails, the compiled function is
// called.
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

/** Maximum builds of a step for its capture: rehearsals until memory settles (usually two), then the captured one. */
const TAKES = 5;
/** A recording that stalls streams is made at this call: it takes about the time that 16 recorded calls save. */
const WORTH_CALLS = 16;

/** Copies values for one call to pinned memory, which the GPU reads without page migration. */
export function pinned(values: HostArray, shape: readonly number[] = [values.length]): MlxArray {
  const symbol = "mlx_serve_pinned";
  const dtype = codeOf(dtypeOf(values));
  return make(symbol, mlxc[symbol](out.view, values, ints(shape), shape.length, dtype));
}

/** Returns a pinned copy, which the host can read once `x` is computed, without waiting for the whole GPU. */
export function fetched(x: MlxArray): MlxArray {
  const symbol = "mlx_serve_fetch";
  return make(symbol, mlxc[symbol](out.view, x.handle, stream));
}

/**
 * A function of arrays, captured as a CUDA graph. Inputs must always have the same shapes. Outputs larger than 64 KiB
 * are valid only for operations that are evaluated before the next call.
 */
export class Recorded {
  /** Why the function is not recorded, or no longer recorded. */
  failure: MlxError | undefined;
  readonly #compiled: Compiled;
  readonly #rehearsal: () => readonly MlxArray[];
  #recording: Pointer | undefined;
  #calls = 0;
  #isTried = false;

  /** `rehearsal`: makes inputs for trial runs before the capture, which may write in place only to scratch memory. */
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

  /** Like `call`, if other streams wait: recording would stall them, so call number WORTH_CALLS does it. */
  callBeside(...inputs: readonly MlxArray[]): MlxArray[] {
    return this.#call(inputs, WORTH_CALLS);
  }

  /** Frees the recording. Call it only after all of its outputs were read. */
  free(): void {
    this.#forget();
    this.#compiled.free();
  }

  /** `recordedFrom`: number of calls, by `call` or `callBeside`, at which the function is recorded. */
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
    // Private arrays to which each replay copies its inputs.
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

  /** Builds the function's outputs TAKES times, unevaluated. The returned vector is the outputs' only owner. */
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
