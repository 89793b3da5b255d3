// The sum that ends one part of a layer, and the norm that begins the next, in one launch on NVIDIA GPUs. A sum is built
// as always, and what it is made of is remembered: where a norm of it is asked for, one kernel makes both, and the sum
// becomes what that kernel makes. Nothing computes the first one then.
import type { MlxArray } from "../mlx/array.ts";
import { isHalf } from "../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import { Constants } from "./constants.ts";
import { KernelCache } from "./kernel-cache.ts";
import body from "./sum-norm.c" with { type: "text" };

/** made (T, D), or with shares (T, K) of a token's experts (T, K, D); residual (T, D) */
export type Addends = { made: MlxArray; shares?: MlxArray | undefined; residual: MlxArray };

/** Of a group, and of the features that a thread keeps. */
const MOST_THREADS = 1024;
const MOST_FEATURES = 16;

/** Features that a thread moves at once. */
const wideOf = (dims: number) => [8, 4, 2].find((wide) => dims % wide === 0)!;

export class SumNorms {
  readonly #kernels: KernelCache;
  readonly #constants = new Constants();
  /** What sums are made of, as long as they are there. */
  readonly #addends = new WeakMap<MlxArray, Addends>();

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
  }

  remember(sum: MlxArray, addends: Addends): MlxArray {
    this.#addends.set(sum, addends);
    return sum;
  }

  /** The norm of a remembered sum; undefined of anything else. */
  norm(sum: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray | undefined {
    const addends = this.#addends.get(sum);
    if (!addends || !weight || !fits(addends, weight)) return undefined;
    this.#addends.delete(sum);
    const { made, shares, residual } = addends;
    const [rows, dims] = residual.shape as [number, number];
    const { dtype } = residual;
    const wide = wideOf(dims);
    const threads = Math.min(MOST_THREADS, Math.ceil(dims / (32 * wide)) * 32);
    const numbers = this.#constants.floats(eps);
    const inputs = { made, shares: shares ?? made, residual, weight, numbers };
    const output = { shape: [rows, dims], dtype };
    const [both, normed] = this.#kernels.runAll("sum_norm", body, inputs, ["sums", "normed"], {
      outputs: [output, output],
      grid: [rows * threads, 1, 1],
      threadGroup: [threads, 1, 1],
      template: {
        T: dtype,
        EACH: shares ? made.shape[1]! : 1,
        DIMS: dims,
        SHARES: shares !== undefined,
        WIDE: wide,
        THREADS: threads,
      },
    }) as [MlxArray, MlxArray];
    sum.trade(both);
    return normed;
  }

  free(): void {
    this.#kernels.free();
    this.#constants.free();
  }
}

/** Its addends may be gone by now, with the scope that they were made in. */
function fits({ made, shares, residual }: Addends, weight: MlxArray): boolean {
  const all = shares ? [made, shares, residual] : [made, residual];
  if (all.some(({ handle }) => handle === null) || residual.ndim !== 2) return false;
  const dims = residual.shape[1]!;
  const { dtype } = residual;
  const isOneType = isHalf(dtype) && made.dtype === dtype && weight.dtype === dtype;
  return isOneType && dims % 2 === 0 && dims <= MOST_FEATURES * MOST_THREADS;
}
