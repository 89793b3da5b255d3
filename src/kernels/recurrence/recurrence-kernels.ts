// Recurrent layers on a GPU, with our own kernels, which write to state pools in place, unseen by MLX.
import type { MlxArray } from "../../mlx/array.ts";
import { bytesOf, isHalf } from "../../mlx/dtype.ts";
import { rmsNorm } from "../../mlx/fast.ts";
import { type Language, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { multiply, reshape, sigmoid, slice } from "../../mlx/ops.ts";
import { Constants } from "../host/constants.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import convolveBody from "./convolve.c" with { type: "text" };
import { recurrenceHeaders } from "./headers.ts";
import type { Convolution, OutputGate, Recurrence, Scan, ScanInputs } from "./recurrence.ts";
import scanBody from "./scan.c" with { type: "text" };
import scanChunksBody from "./scan-chunks.c" with { type: "text" };
import scanTokensBody from "./scan-tokens.c" with { type: "text" };

/** Threads per CTA of convolve.c, and tokens per thread in a step with prompts. */
const CONVOLVE_THREADS = 128;
const RUN = 8;
/** Bytes of the widest load. */
const PACK_BYTES = 16;
/** State rows per warp in scan.c. */
const ROWS_PER_WARP = 8;
const WARPS = 4;
/** Maximum warps of a CTA that has a whole head, and maximum elements of a state; both are limited by registers. */
const MOST_WARPS = 16;
const MOST_STATE = 128 * 128;
/** Shared memory per CTA for staged tokens, small enough that several CTAs fit on an SM. */
const SHARED_BYTES = 24 * 1024;

/** Maximum features of a head in scan-chunks.c, its scorer warps, and its tokens per chunk. */
const MOST_DIM = 128;
const SCORERS = 4;
const CHUNK = 32;
/**
 * Minimum dynamic shared memory that is requested. MLX lets a kernel have more than 48 KiB of shared memory only if
 * the dynamic part alone exceeds about that; static shared memory does not count.
 */
const LEAST_RAISED = 48 * 1024;

/** Ring stages of scan-tokens.c, and minimum work items per CTA for using it. */
const STAGES = 3;
const LEAST_HEADS = 4;

export class RecurrenceKernels implements Recurrence {
  readonly #language: Language;
  readonly #kernels: KernelCache;
  /** Kernels of scan.c with a whole head per CTA and two CTAs per SM: one loads while the other computes. */
  readonly #wholeHeads: KernelCache;
  /** Kernels of scan-tokens.c. */
  readonly #tokens: KernelCache;
  readonly #largeGroups: number;
  readonly #constants = new Constants();

  /** `largeGroups`: CTAs with 200 KiB of shared memory each that run at once (the SMs of a Hopper GPU), or 0. */
  constructor(language: Language, make: MakeKernel = makeKernel, largeGroups = 0) {
    this.#language = language;
    this.#largeGroups = largeGroups;
    const headers = recurrenceHeaders;
    const makeCache = (defines: string[]) => new KernelCache(language, make, { headers, defines });
    this.#tokens = makeCache([`LAUNCH_BOUNDS ${MOST_WARPS * 32}`]);
    this.#kernels = makeCache([]);
    const bounds = `LAUNCH_BOUNDS ${MOST_WARPS * 32}, 2`;
    this.#wholeHeads = makeCache(language === "cuda" ? [bounds] : []);
  }

  convolve(
    x: MlxArray,
    pool: MlxArray,
    moves: MlxArray,
    { weight, bias, activation, column = 0 }: Convolution,
  ): MlxArray {
    const [tokens, width] = x.shape as [number, number];
    const [taps, channels] = weight.shape as [number, number];
    const inputs = { x, pool, moves, weight, bias: bias ?? weight };
    const pack = [8, 4, 2, 1].find(
      (count) =>
        count * bytesOf(x.dtype) <= PACK_BYTES &&
        [width, column, channels].every((each) => each % count === 0),
    )!;
    const run = tokens === countOf(moves) ? 1 : RUN;
    const threads = Math.ceil(channels / (pack * CONVOLVE_THREADS)) * CONVOLVE_THREADS;
    return this.#kernels.run("convolve", convolveBody, inputs, "convolved", {
      outputs: [{ shape: [tokens, channels], dtype: x.dtype }],
      grid: [threads, Math.ceil(tokens / run), 1],
      threadGroup: [CONVOLVE_THREADS, 1, 1],
      template: {
        T: x.dtype,
        WIDTH: width,
        COLUMN: column,
        CHANNELS: channels,
        TAPS: taps,
        BIASED: bias !== undefined,
        SILU: activation === "silu",
        PACK: pack,
        RUN: run,
      },
    });
  }

  scan({ x, gates }: ScanInputs, pool: MlxArray, moves: MlxArray, scan: Scan): MlxArray {
    const [tokens, width] = x.shape as [number, number];
    const [, heads, valueDim, keyDim] = pool.shape as [number, number, number, number];
    if (keyDim % 16 !== 0) throw new Error(`scan: key size ${keyDim} is not a multiple of 16`);
    const given = "raw" in gates ? undefined : gates;
    const { raw, columns: from } = "raw" in gates ? gates : {};
    const isLarge = valueDim > MOST_WARPS * ROWS_PER_WARP || valueDim * keyDim > MOST_STATE;
    if (raw && from?.output && isLarge) {
      const columns = { ...from, output: undefined };
      const read = this.scan({ x, gates: { raw, columns } }, pool, moves, scan);
      return gated(read, raw, from.output, [heads, valueDim]);
    }
    const { keyHeads, columns, norm, deltaRule, erasing, skip } = scan;
    const { output } = from ?? {};
    const decayWidth = given ? given.decays.shape[1]! : from!.rate.size;
    const byFeature = decayWidth === heads * keyDim && keyDim > 1;
    const { eps = 0, queryScale = 1, keyScale = 1 } = norm ?? {};
    const { factor = 1, betaFactor = 1, limits = [0, Infinity] } = from ?? {};
    const outputEps = output?.norm.eps ?? 0;
    const [least, most] = limits;
    // Replaces infinity, because Metal's fast math may assume that there is none.
    const finite = [least, Math.min(most, 3e38)];
    const steps = [factor, ...finite];
    const ends = [outputEps, betaFactor];
    const numbers = this.#constants.floats(eps, queryScale, keyScale, ...steps, ...ends);
    // Inputs that the kernel does not use may be any array.
    const inputs = {
      x,
      raw: raw ?? numbers,
      rate: from?.rate ?? numbers,
      bias: from?.bias ?? numbers,
      decays: given?.decays ?? numbers,
      betas: given?.betas ?? numbers,
      pool,
      moves,
      numbers,
      skip: skip ?? numbers,
      weight: output?.norm.weight ?? numbers,
    };
    const template = {
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
      RAW: raw !== undefined,
      RAW_WIDTH: raw?.shape[1] ?? 0,
      STEPS: from?.steps ?? 0,
      HAS_BETAS: from?.betas !== undefined,
      BETAS: from?.betas ?? 0,
      NORM_OUTPUT: output !== undefined,
      GATES: output?.column ?? 0,
    };
    const count = countOf(moves);
    const outputs = [{ shape: [tokens, heads * valueDim], dtype: x.dtype }];
    const isInPacks =
      this.#language === "cuda" &&
      deltaRule &&
      !skip &&
      !byFeature &&
      fitsPacks({ x, gates }, scan, [valueDim, keyDim]);
    const isMany = this.#largeGroups > 0 && heads * count >= LEAST_HEADS * this.#largeGroups;
    if (isInPacks && tokens === count && isMany && output && keyDim % 32 === 0) {
      const warps = valueDim / ROWS_PER_WARP;
      const needed = STAGES * (4 * valueDim * keyDim + 2 * (valueDim + keyDim) * bytesOf(x.dtype));
      const bytes = Math.max(needed, LEAST_RAISED);
      const launch = {
        outputs,
        grid: [this.#largeGroups * warps * 32, 1, 1] as const,
        threadGroup: [warps * 32, 1, 1] as const,
        template: { ...template, WARPS: warps, STAGES, GROUPS: this.#largeGroups },
      };
      const name = `scan_tokens_${bytes}`;
      return this.#tokens.run(name, scanTokensBody, inputs, "read", launch, bytes);
    }
    if (isInPacks && tokens !== count) {
      const threads = (valueDim / 16 + SCORERS) * 32;
      const needed = 2 * CHUNK * (2 * (keyDim + 8) + valueDim + 8) * bytesOf(x.dtype);
      const bytes = Math.max(needed, LEAST_RAISED);
      const launch = {
        outputs,
        grid: [threads, heads, count] as const,
        threadGroup: [threads, 1, 1] as const,
        template,
      };
      // A compiled kernel has a fixed size of shared memory, so the size is part of its name.
      const name = `scan_chunks_${bytes}`;
      return this.#kernels.run(name, scanChunksBody, inputs, "read", launch, bytes);
    }
    const warps = output ? Math.ceil(valueDim / ROWS_PER_WARP) : WARPS;
    const rows = warps * ROWS_PER_WARP;
    const vectors = 2 + (byFeature ? 1 : 0) + (erasing ? 2 : 0);
    const floats = vectors * keyDim + rows + 2;
    const tokenBytes = 4 * floats + (output ? rows * bytesOf(x.dtype) : 0);
    // Two CTAs per SM leave too few registers for a thread's state if keys have more than MOST_DIM features.
    const isBounded = output !== undefined && keyDim <= MOST_DIM;
    const kernels = isBounded ? this.#wholeHeads : this.#kernels;
    return kernels.run(isBounded ? "scan_heads" : "scan", scanBody, inputs, "read", {
      outputs,
      grid: [Math.ceil(valueDim / rows) * warps * 32, heads, count],
      threadGroup: [warps * 32, 1, 1],
      template: {
        ...template,
        DELTA_RULE: deltaRule,
        SKIP: skip !== undefined,
        BY_FEATURE: byFeature,
        ERASES: erasing !== undefined,
        FINDS: erasing?.find ?? 0,
        PUTS: erasing?.put ?? 0,
        WARPS: warps,
        CHUNK: Math.max(1, Math.floor(SHARED_BYTES / tokenBytes)),
      },
    });
  }

  free(): void {
    this.#kernels.free();
    this.#wholeHeads.free();
    this.#tokens.free();
    this.#constants.free();
  }
}

/** Returns the number of sequences in packed moves. */
function countOf(moves: MlxArray): number {
  return moves.shape[0]! / 4 - 1;
}

/** Whether columns are aligned for 16-byte loads, and head sizes fit the tiles of scan-chunks.c. */
function fitsPacks({ x, gates }: ScanInputs, { columns }: Scan, dims: readonly number[]): boolean {
  const output = "raw" in gates ? gates.columns.output : undefined;
  const rows = "raw" in gates && output ? [gates.raw.shape[1]!, output.column] : [];
  const isOneType = !("raw" in gates) || gates.raw.dtype === x.dtype;
  return (
    isHalf(x.dtype) &&
    isOneType &&
    dims.every((dim) => dim % 16 === 0 && dim <= MOST_DIM) &&
    [x.shape[1]!, ...Object.values(columns), ...rows].every((at) => at % 8 === 0)
  );
}

/** Computes the gated RMSNorm with MLX's operations, for heads that are too large for a CTA. */
function gated(
  read: MlxArray,
  raw: MlxArray,
  { column, norm }: OutputGate,
  [heads, valueDim]: [number, number],
): MlxArray {
  const width = heads * valueDim;
  const normed = rmsNorm(reshape(read, [-1, heads, valueDim]), norm.weight, norm.eps);
  const gates = slice(raw, 1, column, column + width);
  return multiply(multiply(gates, sigmoid(gates)), reshape(normed, [-1, width]));
}
