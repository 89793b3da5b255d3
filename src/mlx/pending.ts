// An array that one consumer may compute together with its own result, in a single launch. For every other consumer
// it is an array like any other, which MLX evaluates by the operation that made it.
import { mlxc } from "../../ffi/lib.ts";
import { MlxArray } from "./array.ts";

export class PendingArray<
  Inputs extends Readonly<Record<string, MlxArray | undefined>>,
> extends MlxArray {
  #inputs: Inputs | undefined;

  /** `array`: the unevaluated result of an operation on `inputs`. Its handle passes to this array. */
  constructor(array: MlxArray, inputs: Inputs) {
    super(array.release());
    this.#inputs = inputs;
  }

  /** For the launch that computes the array; undefined once it is settled, or if an input was freed with its scope. */
  get inputs(): Inputs | undefined {
    const isFreed = Object.values(this.#inputs ?? {}).some((each) => each?.handle === null);
    return isFreed ? undefined : this.#inputs;
  }

  /** Becomes an output of that launch, so that the operation that made it is never evaluated. */
  settle(computed: MlxArray): void {
    mlxc.mlx_array_free(this.handle);
    this.handle = computed.release();
    this.#inputs = undefined;
  }
}
