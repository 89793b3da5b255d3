// Residual add and the RMSNorm that follows it, in one launch on NVIDIA GPUs. Norms without an add are a kernel of
// ours too: MLX's kernel does not support programmatic dependent launch, so it would not overlap with the launches
// before and after it.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type KernelLaunch, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { PendingArray } from "../../mlx/pending.ts";
import { Constants } from "../host/constants.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./sum-norm.c" with { type: "text" };

/** Terms of a residual add: residual (T, D) and made (T, D). With routing weights `shares` (T, K), made (T, K, D). */
export type Addends = { made: MlxArray; shares?: MlxArray | undefined; residual: MlxArray };

/** A residual add that the norm after it may compute. */
export class PendingSum extends PendingArray<Addends> {}

/** Maximum threads per CTA, and maximum features per thread. */
const MOST_THREADS = 1024;
const MOST_FEATURES = 16;

/** Returns the number of features per load or store. */
const wideOf = (dims: number) => [8, 4, 2].find((wide) => dims % wide === 0)!;

export class SumNorms {
  readonly #kernels: KernelCache;
  /** Kernels for norms without an add. */
  readonly #alone: KernelCache;
  readonly #constants = new Constants();

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
    this.#alone = new KernelCache("cuda", make, { defines: ["ALONE"] });
  }

  /** Computes the norm of x (T, D), fused with its residual add if that is pending; undefined if unsupported. */
  norm(x: MlxArray | PendingSum, weight: MlxArray | undefined, eps: number): MlxArray | undefined {
    if (!weight || !fits(x, weight)) return undefined;
    if (x instanceof PendingSum) {
      const addends = x.inputs;
      if (addends && areAlike(addends, x)) return this.#both(x, addends, weight, eps);
    }
    return this.#norm(x, weight, eps);
  }

  free(): void {
    this.#kernels.free();
    this.#alone.free();
    this.#constants.free();
  }

  #both(sum: PendingSum, addends: Addends, weight: MlxArray, eps: number): MlxArray {
    const { made, shares, residual } = addends;
    const { template, ...launch } = launchOf(residual);
    const numbers = this.#constants.floats(eps);
    const inputs = { made, shares: shares ?? made, residual, weight, numbers };
    const [both, normed] = this.#kernels.runAll("sum_norm", body, inputs, ["sums", "normed"], {
      ...launch,
      outputs: [...launch.outputs, ...launch.outputs],
      template: { ...template, EACH: shares ? made.shape[1]! : 1, SHARES: shares !== undefined },
    }) as [MlxArray, MlxArray];
    sum.settle(both);
    return normed;
  }

  #norm(x: MlxArray, weight: MlxArray, eps: number): MlxArray {
    const inputs = { residual: x, weight, numbers: this.#constants.floats(eps) };
    return this.#alone.run("norm", body, inputs, "normed", launchOf(x));
  }
}

/** Returns the launch configuration of the norm of x. */
function launchOf(x: MlxArray) {
  const [rows, dims] = x.shape as [number, number];
  const { dtype } = x;
  const wide = wideOf(dims);
  const threads = Math.min(MOST_THREADS, Math.ceil(dims / (32 * wide)) * 32);
  return {
    outputs: [{ shape: [rows, dims], dtype }],
    grid: [rows * threads, 1, 1],
    threadGroup: [threads, 1, 1],
    template: { T: dtype, DIMS: dims, WIDE: wide, THREADS: threads },
  } satisfies KernelLaunch;
}

function fits(x: MlxArray, weight: MlxArray): boolean {
  const { dtype } = x;
  if (x.ndim !== 2 || !isHalf(dtype) || weight.dtype !== dtype) return false;
  const dims = x.shape[1]!;
  return weight.size === dims && dims % 2 === 0 && dims <= MOST_FEATURES * MOST_THREADS;
}

/** Whether the addends have the same type as their sum. */
function areAlike({ made, residual }: Addends, { dtype }: MlxArray): boolean {
  return residual.ndim === 2 && residual.dtype === dtype && made.dtype === dtype;
}
