// Numbers that launches take, each list made once. MLX gives arrays of fewer than 8 elements to Metal in another
// address space. On NVIDIA GPUs it keeps those of at most 8 bytes in memory that the CPU writes to all the time: a
// kernel that read one waited for it, for up to 20 us (docs/log.md). What the GPU has made is its own.
import { array, type MlxArray } from "../../mlx/array.ts";
import { add } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";

const FEWEST = 8;
const COUNTERS = 64;

export class Constants {
  readonly #made = new Map<string, MlxArray>();
  readonly #counters = new WeakMap<MlxArray, number>();
  #owners = 0;

  /** int32, with zeros behind the values. */
  ints(...values: readonly number[]): MlxArray {
    return this.#of(`ints ${values.join()}`, () => Int32Array.from(padded(values)));
  }

  /** float32, with zeros behind the values. */
  floats(...values: readonly number[]): MlxArray {
    return this.#of(`floats ${values.join()}`, () => Float32Array.from(padded(values)));
  }

  /**
   * A zero that launches of this owner may write to, as long as it is zero behind each of them. Launches of some
   * COUNTERS owners may run at the same time.
   */
  counter(owner: MlxArray): MlxArray {
    const place = this.#counters.get(owner) ?? this.#owners++ % COUNTERS;
    this.#counters.set(owner, place);
    return this.#of(`counter ${place}`, () => Int32Array.from(padded([])));
  }

  free(): void {
    for (const each of this.#made.values()) each.free();
  }

  #of(key: string, values: () => Int32Array | Float32Array): MlxArray {
    const found = this.#made.get(key);
    if (found) return found;
    using _ = new Scope();
    const made = hold(add(array(values()), 0));
    made.evaluate();
    this.#made.set(key, made);
    return made;
  }
}

function padded(values: readonly number[]): number[] {
  return Array.from({ length: Math.max(FEWEST, values.length) }, (_, i) => values[i] ?? 0);
}
