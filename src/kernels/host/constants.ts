// Numbers that launches take, each list made once. MLX gives arrays of fewer than 8 elements to Metal in another
// address space. On NVIDIA GPUs it keeps those of at most 8 bytes in memory that the CPU writes to all the time: a
// kernel that read one waited for it, for up to 20 us (docs/log.md). Values computed on the GPU stay in device memory.
//
// Making one waits for the GPU in the middle of a launch, so it happens only in a model's first steps: constants follow
// from the model alone. Kernels read sizes that follow from a step, such as its number of tokens, from the shapes of
// their inputs, which MLX passes with the launch (`x_shape`).
import { array, type MlxArray } from "../../mlx/array.ts";
import { add } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { Recent } from "./recent.ts";

const FEWEST = 8;
const COUNTERS = 64;
/** Of several models. Recorded steps hold what they use themselves. */
const MOST = 256;

export class Constants {
  readonly #made = new Recent<string, MlxArray>(MOST);
  readonly #counters = new WeakMap<MlxArray, number>();
  #owners = 0;

  /** float32, with zeros behind the values. */
  floats(...values: readonly number[]): MlxArray {
    return this.#of(`floats ${values.join()}`, () => Float32Array.from(padded(values)));
  }

  /**
   * A zero that launches of this owner may write to, as long as it is zero behind each of them. Launches of some
   * COUNTERS owners may run at the same time. Without an owner, one that no launch writes to.
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
