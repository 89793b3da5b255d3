// Constant arrays that launches take as inputs, each made once. MLX gives arrays of fewer than 8 elements to Metal in
// another address space. On NVIDIA GPUs it keeps those of at most 8 bytes in memory that the CPU
// writes to all the time: a kernel that read one waited for it, for up to 20 us (docs/log.md). Values
// computed on the GPU stay in device memory.
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
 * Maximum constants, for several models. MLX counts references, so recorded and running steps keep evicted constants
 * alive.
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
   * Returns a zero-initialized counter, which each launch must leave at zero. Launches of up to COUNTERS owners may
   * overlap. Without an owner, returns a counter that no launch writes to.
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
