// Recurrent layers on a GPU, by kernels of our own. They write to their pools in place, which MLX knows nothing of.
import { array, type MlxArray } from "../mlx/array.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import { hold } from "../mlx/scope.ts";
import convolveBody from "./convolve.c" with { type: "text" };
import { KernelCache } from "./kernel-cache.ts";
import type { Convolution, Recurrence, Scan, ScanInputs } from "./recurrence.ts";
import scanBody from "./scan.c" with { type: "text" };
import type { Language } from "./source.ts";

const CHANNELS_PER_GROUP = 256;
const WARPS = 4;
/** Floats of queries, and as many of keys, in shared memory: with decays for each feature still below 32 KiB. */
const CHUNK_FLOATS = 2048;

export class RecurrenceKernels implements Recurrence {
  readonly #kernels: KernelCache;
  readonly #norms = new Map<Scan, MlxArray>();

  constructor(language: Language, make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache(language, make);
  }

  convolve(
    x: MlxArray,
    pool: MlxArray,
    moves: MlxArray,
    { weight, bias, activation }: Convolution,
  ): MlxArray {
    const [tokens, channels] = x.shape as [number, number];
    const inputs = { x, pool, moves, weight, bias: bias ?? weight };
    return this.#kernels.run("convolve", convolveBody, inputs, "convolved", {
      outputs: [{ shape: [tokens, channels], dtype: x.dtype }],
      grid: [Math.ceil(channels / CHANNELS_PER_GROUP) * CHANNELS_PER_GROUP, tokens, 1],
      threadGroup: [CHANNELS_PER_GROUP, 1, 1],
      template: {
        T: x.dtype,
        CHANNELS: channels,
        TAPS: weight.shape[0]!,
        BIASED: bias !== undefined,
        SILU: activation === "silu",
      },
    });
  }

  scan({ x, decays, betas }: ScanInputs, pool: MlxArray, moves: MlxArray, scan: Scan): MlxArray {
    const [tokens, width] = x.shape as [number, number];
    const [, heads, valueDim, keyDim] = pool.shape as [number, number, number, number];
    if (keyDim % 16 !== 0) throw new Error(`there is no scan for keys of ${keyDim} features`);
    const { keyHeads, columns, norm, deltaRule } = scan;
    const rows = 8 * WARPS;
    const inputs = { x, decays, betas, pool, moves, norm: this.#normOf(scan) };
    return this.#kernels.run("scan", scanBody, inputs, "read", {
      outputs: [{ shape: [tokens, heads * valueDim], dtype: x.dtype }],
      grid: [Math.ceil(valueDim / rows) * WARPS * 32, heads, moves.shape[0]! / 4 - 1],
      threadGroup: [WARPS * 32, 1, 1],
      template: {
        T: x.dtype,
        HEADS: heads,
        KEY_HEADS: keyHeads,
        KEY_DIM: keyDim,
        VALUE_DIM: valueDim,
        WIDTH: width,
        QUERIES: columns.queries,
        KEYS: columns.keys,
        VALUES: columns.values,
        NORMED: norm !== undefined,
        DELTA_RULE: deltaRule,
        BY_FEATURE: decays.shape[1] === heads * keyDim && keyDim > 1,
        WARPS,
        CHUNK: CHUNK_FLOATS / keyDim,
      },
    });
  }

  free(): void {
    this.#kernels.free();
    for (const each of this.#norms.values()) each.free();
  }

  /** MLX gives arrays of fewer than 8 elements to Metal in another address space. */
  #normOf(scan: Scan): MlxArray {
    const { eps = 0, queryScale = 1, keyScale = 1 } = scan.norm ?? {};
    const numbers = Float32Array.of(eps, queryScale, keyScale, 0, 0, 0, 0, 0);
    const norm = this.#norms.get(scan) ?? hold(array(numbers));
    this.#norms.set(scan, norm);
    return norm;
  }
}
