// SwiGLU of rows with gate and up halves, on NVIDIA GPUs, 8 numbers per thread; MLX's kernel moves
// one number at a time.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./gate.c" with { type: "text" };

const THREADS = [256, 128, 64] as const;

export class Gates {
  readonly #kernels: KernelCache;

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
  }

  /** Computes silu(first half) * second half, (R, 2 N) -> (R, N); undefined if unsupported. */
  swiglu(halves: MlxArray): MlxArray | undefined {
    const [rows, both] = halves.shape as [number, number];
    if (halves.ndim !== 2 || !isHalf(halves.dtype) || both % 16 !== 0) return undefined;
    const packs = both / 16;
    const threads = THREADS.find((count) => packs % count === 0) ?? THREADS[0];
    return this.#kernels.run("gate", body, { halves }, "gated", {
      outputs: [{ shape: [rows, both / 2], dtype: halves.dtype }],
      grid: [rows * Math.ceil(packs / threads) * threads, 1, 1],
      threadGroup: [threads, 1, 1],
      template: { T: halves.dtype, N: both / 2, THREADS: threads },
    });
  }

  free(): void {
    this.#kernels.free();
  }
}
