// Constant arrays that launches take as inputs, each made once. MLX passes arrays of fewer than 8 elements to Metal in
// another address space. On NVIDIA GPUs it keeps arrays of at most 8 bytes in memory that the CPU writes to all the
// time, so a kernel that reads such an array waits for that memory, for up to 20 us (docs/log.md). Values computed on
// the GPU stay in device memory.
//
// Evaluating a new constant waits for the GPU while a step is built. So constants depend on the model
// alone, and are made in its first steps. Kernels read sizes that depend on the step, such as the
// number of tokens, from the shapes of their inputs (`Shape` in cuda.h).
import { array, type MlxArray } from "../../mlx/array.ts";
import { add } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { Recent } from "./recent.ts";

const FEWEST = 8;
const COUNTERS = 64;
/**
 * Maximum cached constants, enough for several models. MLX counts references, so recorded and running steps keep
 * evicted constants alive.
 */
const MOST = 256;

export class Constants {
  readonly #made = new Recent<string, MlxArray>(MOST);
  readonly #counters = new WeakMap<MlxArray, number>();
  #owners = 0;

  /** Returns these numbers as float32, padded with zeros. */
  floats(...values: readonly number[]): MlxArray {
    return this.#of(`floats ${values.join()}`, () => Float32Array.from(padded(values)));
  }

  /**
   * Returns a counter that is zero before each launch; a launch that changes it must reset it. Each of up to COUNTERS
   * owners (weights) has its own, so their launches may overlap. The counter without an owner is read-only.
   */
  counter(owner?: MlxArray): MlxArray {
    const place = owner && (this.#counters.get(owner) ?? this.#owners++ % COUNTERS);
    if (owner) this.#counters.set(owner, place!);
    return this.#of(`counter ${place}`, () => Int32Array.from(padded([])));
  }

  free(): void {
    this.#made.free();
  }

  #of(key: string, values: () => Int32Array | Float32Array): MlxArray {
    return this.#made.get(key, () => {
      using _ = new Scope();
      const made = hold(add(array(values()), 0));
      made.evaluate();
      return made;
    });
  }
}

function padded(values: readonly number[]): number[] {
  return Array.from({ length: Math.max(FEWEST, values.length) }, (_, i) => values[i] ?? 0);
}
