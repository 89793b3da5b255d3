// Residual add and the RMSNorm that follows it, in one launch on NVIDIA GPUs. The sum is built as
// usual and its addends are remembered: if a norm of it is requested, one kernel computes both, and
// the sum's array is replaced by that kernel's output, so that the original add is never evaluated.
// Without remembered addends only the norm is computed: MLX's kernel does not support programmatic
// dependent launch, so it would wait for its predecessor, and its successor for it.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type KernelLaunch, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { Constants } from "../host/constants.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./sum-norm.c" with { type: "text" };

/** made (T, D), or with shares (T, K) the expert outputs (T, K, D); residual (T, D) */
export type Addends = { made: MlxArray; shares?: MlxArray | undefined; residual: MlxArray };

/** Maximum threads per CTA, and features per thread. */
const MOST_THREADS = 1024;
const MOST_FEATURES = 16;

/** Features per load or store. */
const wideOf = (dims: number) => [8, 4, 2].find((wide) => dims % wide === 0)!;

export class SumNorms {
  readonly #kernels: KernelCache;
  /** Norms without an add. */
  readonly #alone: KernelCache;
  readonly #constants = new Constants();
  /** The addends of sums that are alive. */
  readonly #addends = new WeakMap<MlxArray, Addends>();

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
    this.#alone = new KernelCache("cuda", make, { defines: ["ALONE"] });
  }

  remember(sum: MlxArray, addends: Addends): MlxArray {
    this.#addends.set(sum, addends);
    return sum;
  }

  /** The norm of x (T, D), a remembered sum or not; undefined if unsupported. */
  norm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray | undefined {
    if (!weight || !fits(x, weight)) return undefined;
    const addends = this.#addends.get(x);
    this.#addends.delete(x);
    return addends && areThere(addends, x)
      ? this.#both(x, addends, weight, eps)
      : this.#norm(x, weight, eps);
  }

  free(): void {
    this.#kernels.free();
    this.#alone.free();
    this.#constants.free();
  }

  #both(sum: MlxArray, addends: Addends, weight: MlxArray, eps: number): MlxArray {
    const { made, shares, residual } = addends;
    const { template, ...launch } = launchOf(residual);
    const numbers = this.#constants.floats(eps);
    const inputs = { made, shares: shares ?? made, residual, weight, numbers };
    const [both, normed] = this.#kernels.runAll("sum_norm", body, inputs, ["sums", "normed"], {
      ...launch,
      outputs: [...launch.outputs, ...launch.outputs],
      template: {
        ...template,
        EACH: shares ? made.shape[1]! : 1,
        SHARES: shares !== undefined,
      },
    }) as [MlxArray, MlxArray];
    sum.trade(both);
    return normed;
  }

  #norm(x: MlxArray, weight: MlxArray, eps: number): MlxArray {
    const inputs = { residual: x, weight, numbers: this.#constants.floats(eps) };
    return this.#alone.run("norm", body, inputs, "normed", launchOf(x));
  }
}

/** The launch that computes the norm of x. */
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

/** Addends may have been freed with their scope; and all must have the sum's type. */
function areThere({ made, shares, residual }: Addends, { dtype }: MlxArray): boolean {
  const all = shares ? [made, shares, residual] : [made, residual];
  if (all.some(({ handle }) => handle === null)) return false;
  return residual.ndim === 2 && residual.dtype === dtype && made.dtype === dtype;
}
