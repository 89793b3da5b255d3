// The sum that ends one part of a layer, and the norm that begins the next, in one launch on NVIDIA
// GPUs. A sum is built as always, and what it is made of is remembered: where a norm of it is asked
// for, one kernel makes both, and the sum becomes what that kernel makes. Nothing computes the
// first one then. Of what is no such sum, it makes the norm alone: MLX's kernel waits until the one
// before it has ended, and the one behind waits for it.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type KernelLaunch, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { Constants } from "../host/constants.ts";
import { KernelCache } from "../host/kernel-cache.ts";
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
  /** Of norms without a sum. */
  readonly #alone: KernelCache;
  readonly #constants = new Constants();
  /** What sums are made of, as long as they are there. */
  readonly #addends = new WeakMap<MlxArray, Addends>();

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
    this.#alone = new KernelCache("cuda", make, { defines: ["ALONE"] });
  }

  remember(sum: MlxArray, addends: Addends): MlxArray {
    this.#addends.set(sum, addends);
    return sum;
  }

  /** Of x (T, D), a remembered sum or not; undefined where there is no kernel for it. */
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

/** Of the norm of x. */
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

/**
 * They may be gone by now, with the scope that they were made in; and they are of the sum's type.
 */
function areThere({ made, shares, residual }: Addends, { dtype }: MlxArray): boolean {
  const all = shares ? [made, shares, residual] : [made, residual];
  if (all.some(({ handle }) => handle === null)) return false;
  return residual.ndim === 2 && residual.dtype === dtype && made.dtype === dtype;
}
