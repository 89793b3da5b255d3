// An array that one consumer may compute together with its own result, in a single launch. Every other consumer uses
// it like any array, and MLX evaluates it by the operation that made it.
import { mlxc } from "../../ffi/lib.ts";
import { MlxArray } from "./array.ts";

export class PendingArray<
  Inputs extends Readonly<Record<string, MlxArray | undefined>>,
> extends MlxArray {
  #inputs: Inputs | undefined;

  /** `array` is the unevaluated result of an operation on `inputs`. Its handle passes to the pending array. */
  constructor(array: MlxArray, inputs: Inputs) {
    super(array.release());
    this.#inputs = inputs;
  }

  /** Inputs of the operation; undefined after `settle`, or if a scope has freed an input. */
  get inputs(): Inputs | undefined {
    const isFreed = Object.values(this.#inputs ?? {}).some((each) => each?.handle === null);
    return isFreed ? undefined : this.#inputs;
  }

  /** Replaces the array by an output of the consumer's launch, so that its own operation is never evaluated. */
  settle(computed: MlxArray): void {
    mlxc.mlx_array_free(this.handle);
    this.handle = computed.release();
    this.#inputs = undefined;
  }
}
