// Embedding lookup on NVIDIA GPUs. MLX's gather moves one number at a time, and the kernel after it
// cannot start before it ends (programmatic dependent launch).
import type { MlxArray } from "../../mlx/array.ts";
import { bytesOf } from "../../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./lookup.c" with { type: "text" };

const PACK_BYTES = 16;
const MOST_THREADS = 1024;
/** Tokens from which on a CTA copies several rows, for more loads in flight. */
const MANY_TOKENS = 1024;
const TOKENS_PER_CTA = 4;

export class Lookups {
  readonly #kernels: KernelCache;

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
  }

  /** Looks up the rows of matrix (V, D) at tokens (T) -> (T, D); undefined if unsupported. */
  rows(matrix: MlxArray, tokens: MlxArray): MlxArray | undefined {
    const { dtype } = matrix;
    const [rows, dims] = matrix.shape as [number, number];
    const rowBytes = dims * bytesOf(dtype);
    if (tokens.ndim !== 1 || tokens.dtype !== "uint32" || rowBytes % PACK_BYTES !== 0) {
      return undefined;
    }
    const count = tokens.shape[0]!;
    const areMany = count >= MANY_TOKENS && count % TOKENS_PER_CTA === 0;
    const each = areMany ? TOKENS_PER_CTA : 1;
    const threads = Math.min(MOST_THREADS, Math.ceil(rowBytes / PACK_BYTES / 32) * 32);
    return this.#kernels.run("lookup", body, { matrix, tokens }, "found", {
      outputs: [{ shape: [count, dims], dtype }],
      grid: [(count / each) * threads, 1, 1],
      threadGroup: [threads, 1, 1],
      template: { T: dtype, ROWS: rows, DIMS: dims, EACH: each, THREADS: threads },
    });
  }

  free(): void {
    this.#kernels.free();
  }
}
