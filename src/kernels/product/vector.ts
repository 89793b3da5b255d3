// Products of one token with a matrix, or with the matrices of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../../mlx/array.ts";
import type { ProductOptions } from "../../mlx/cpu.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Constants } from "../host/constants.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { productHeaders } from "./headers.ts";
import { type Form, isWhole } from "./matrix.ts";
import packedBody from "./packed-vector.c" with { type: "text" };
import streamBody from "./streamed-vector.c" with { type: "text" };
import denseBody from "./vector.c" with { type: "text" };
import { type ProductKernel, readingCost } from "./way.ts";

/**
 * Kernels whose warps read whole rows of the matrix, or shares of rows. `packs`: maximum 16-byte loads in flight per
 * lane, limited by registers. `mostLines`: maximum rows of the matrix per warp.
 */
const DENSE = { name: "vector", body: denseBody, warps: 4, packs: 16, mostLines: 8 };
const PACKED = { name: "packed_vector", body: packedBody, warps: 8, packs: 12, mostLines: 4 };
const readerOf = (bits: number) => (bits === 16 ? DENSE : PACKED);

/** Maximum packs per lane, of a matrix row and of the token. */
const MOST_PACKS = 8;
/** Maximum elements of a token that a CTA stages in shared memory for a quantized matrix. */
const MOST_STAGED = 10_240;

type Sizes = Pick<Form, "outputs" | "inputs" | "bits">;

const packsOf = ({ inputs, bits }: Sizes, shares: number) =>
  Math.ceil((inputs * bits) / (128 * 32 * shares));

export function fitsVector(sizes: Sizes): boolean {
  const { outputs, inputs, bits } = sizes;
  const { warps, mostLines } = readerOf(bits);
  const isEven = (inputs * bits) % 128 === 0 && outputs % (2 * warps * mostLines) === 0;
  const { shares, packs } = sharing(sizes);
  const isStaged = bits === 16 || (packs * shares * 32 * 128) / bits <= MOST_STAGED;
  return isEven && isStaged && packs <= MOST_PACKS;
}

/** Returns the lowest number of warps that can share a row of the matrix, and the packs per lane. */
function sharing(sizes: Sizes) {
  const { warps } = readerOf(sizes.bits);
  const shares = [1, 2].find((count) => packsOf(sizes, count) <= MOST_PACKS) ?? warps;
  return { shares, packs: packsOf(sizes, shares) };
}

type Fused = { isGated: boolean; isNormed: boolean; isAdded: boolean };

/**
 * Chooses how whole rows are read: rows per warp (a power of two), and CTAs. If the grid is persistent, all CTAs have
 * the same number of rounds; `resident`: CTAs per SM, as many as registers allow.
 */
function reading(
  { multiprocessors }: Gpu,
  sizes: Sizes,
  columns: number,
  { isGated, isNormed, isAdded }: Fused,
) {
  const { name, body, warps, packs: most, mostLines } = readerOf(sizes.bits);
  const { shares, packs } = sharing(sizes);
  const isDense = sizes.bits === 16;
  const halves = isGated ? 2 : 1;
  const fit = Math.max(1, Math.floor(most / (packs * halves)));
  let lines = Math.min(mostLines, 2 ** Math.floor(Math.log2(fit)));
  const steps = () => columns / ((warps / shares) * lines);
  while (!isDense && lines > 1 && steps() < 2 * multiprocessors) lines /= 2;
  const template = { PACKS: packs, LINES: lines, WARPS: warps, SHARES: shares };
  const launch = { name, body, warps, template, sharedMemory: 0 };
  if (isDense && !isNormed) return { ...launch, groups: steps(), resident: undefined };
  const hasManyLoads = isDense ? packs > 6 : packs * lines * halves > 8;
  const resident = (isDense ? 4 : 3) - Number(hasManyLoads);
  const even = Math.ceil(steps() / (resident * multiprocessors));
  // Residuals limit the rounds: all are loaded before the first, one per thread, or if dense those of one round.
  const mostRounds = isDense ? 1 : Math.floor((shares * 32) / lines);
  const rounds = isAdded ? Math.min(mostRounds, even) : even;
  const groups = Math.ceil(steps() / rounds);
  return { ...launch, name: `${name}_${resident}`, groups, resident };
}

/** Maximum warps that compute in a streaming CTA, and maximum tiles times pairs of steps that a warp has at once. */
const STREAM_WARPS = 16;
const STREAM_PARTS = 4;
/**
 * Minimum and maximum shared memory of a streaming CTA. The minimum exceeds half of an SM's shared memory, so that
 * each CTA has an SM of its own. It also exceeds 132 KiB, so that the carve-out is 164 KiB and leaves room for a CTA
 * of the next launch.
 */
const LEAST_STREAM_BYTES = 136 * 1024;
const MOST_STREAM_BYTES = 192 * 1024;
/** Bytes that a CTA requests before the token is available; more would delay the load of the token. */
const EARLY_STREAM_BYTES = 70 * 1024;
/** Bytes in flight per CTA with work stealing, and minimum rounds for work stealing. */
const CLAIMED_STREAM_BYTES = 112 * 1024;
const CLAIMED_ROUNDS = 6;
/** Maximum tiles whose partial sums are buffered before they are reduced over the warps. */
const KEPT_TILES = 16;

/** Chooses how to stream a quantized matrix in tiles of 8 rows (gated: 8 gate and 8 up); undefined if unsupported. */
function streaming(
  { multiprocessors }: Gpu,
  { inputs, bits, span }: Form,
  columns: number,
  { isGated, isNormed, isAdded }: Fused,
) {
  const steps = (inputs * bits) / 512;
  const isEven = Number.isInteger(steps) && inputs % span === 0 && columns % 8 === 0;
  if (!isEven || ![32, 64, 128].includes(span)) return undefined;
  const pairs = Math.ceil(steps / 2 / STREAM_WARPS);
  const warps = Math.ceil(steps / 2 / pairs);
  const halves = isGated ? 2 : 1;
  const tiles = columns / 8;
  const tileBytes = halves * 8 * ((inputs * bits) / 8 + (4 * inputs) / span);
  const digitBytes = (1 + warps) * pairs * 512 * (isNormed ? 2 : 1);
  const room = MOST_STREAM_BYTES - digitBytes;
  const few = Math.ceil(tiles / multiprocessors);
  const ways = [few, 4, 2, 1].flatMap((lines) => {
    const all = tiles / lines;
    const rounds = Math.ceil(all / multiprocessors);
    const fit = (bytes: number) => Math.min(rounds, Math.floor(bytes / (lines * tileBytes)));
    const isClaimed = !isAdded && fit(room) < rounds;
    const slots = isClaimed ? fit(Math.min(room, CLAIMED_STREAM_BYTES)) : fit(room);
    const isPossible =
      Number.isInteger(all) &&
      lines * halves * pairs <= STREAM_PARTS &&
      (slots > 1 || slots === rounds) &&
      (!isAdded || rounds * lines <= Math.min(KEPT_TILES, warps * 4));
    const groups = isClaimed ? multiprocessors : Math.ceil(all / rounds);
    return isPossible ? [{ lines, slots, rounds, isClaimed, groups }] : [];
  });
  // Many tiles per round have less overhead; but the CTAs' shares should be even, unless CTAs claim their tiles.
  const least = Math.min(...ways.map(({ lines, rounds }) => lines * rounds));
  const best =
    ways.find(
      ({ isClaimed, rounds, lines }) => isClaimed && (rounds >= CLAIMED_ROUNDS || lines === 1),
    ) ?? ways.find(({ lines, rounds }) => lines * rounds <= 1.1 * least);
  if (!best) return undefined;
  const { lines, slots, groups, isClaimed } = best;
  const roundBytes = lines * tileBytes;
  const bytes = digitBytes + slots * (roundBytes + 16) + 8;
  const sharedMemory = Math.max(bytes, LEAST_STREAM_BYTES);
  return {
    name: `streamed_vector_${sharedMemory}`,
    body: streamBody,
    // Adds the producer warp.
    warps: warps + 1,
    groups,
    isClaimed,
    resident: 1,
    sharedMemory,
    template: {
      ...{ WARPS: warps, PAIRS: pairs, LINES: lines, SLOTS: slots, KEPT: KEPT_TILES },
      ...{ EARLY: Math.max(1, Math.floor(EARLY_STREAM_BYTES / roundBytes)), CLAIMED: isClaimed },
    },
  };
}

/** Makes products of x (1, K) -> (1, N). With R `chosen` experts x has 1 or R rows, and the result is (R, N). */
export function vectors(gpu: Gpu, make: MakeKernel, constants: Constants) {
  // One kernel cache per `resident`, the CTAs per SM for which the compiler limits registers.
  const kernels = new KernelCaches("cuda", make, productHeaders);
  const product = (
    x: MlxArray,
    form: Form,
    { norm, isGated = false, residual }: ProductOptions,
    chosen?: MlxArray,
  ): MlxArray => {
    const { weight, scales, biases, outputs, inputs, bits, span } = form;
    const rows = chosen?.size ?? 1;
    const columns = isGated ? outputs / 2 : outputs;
    const fused = { isGated, isNormed: norm !== undefined, isAdded: residual !== undefined };
    const isStreamed = scales && !chosen && gpu.hasWgmma;
    const streamed = isStreamed ? streaming(gpu, form, columns, fused) : undefined;
    const { name, body, warps, groups, resident, sharedMemory, template } =
      streamed ?? reading(gpu, form, columns, fused);
    // Inputs that the kernel does not use may be any array.
    const given = {
      x,
      weight,
      ...(scales && { scales, biases: biases! }),
      norm: norm?.weight ?? x,
      numbers: constants.floats(norm?.eps ?? 0),
      residual: residual ?? x,
      ...(streamed
        ? { claims: constants.counter(streamed.isClaimed ? weight : undefined) }
        : { chosen: chosen ?? x }),
    };
    const launch: KernelLaunch = {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [groups * warps * 32, rows, 1],
      threadGroup: [warps * 32, 1, 1],
      template: {
        ...{ T: x.dtype, K: inputs, N: outputs },
        ...(scales && { BITS: bits, SPAN: span }),
        ...{ NORMED: fused.isNormed, GATED: isGated, RESIDUAL: fused.isAdded },
        ...(!streamed && { EXPERTS: chosen !== undefined, EACH: rows / x.shape[0]! }),
        ...template,
        GROUPS: groups,
      },
    };
    const bounds = resident ? [`LAUNCH_BOUNDS ${warps * 32}, ${resident}`] : [];
    return kernels.with(bounds).run(name, body, given, "made", launch, sharedMemory);
  };
  return {
    product,
    wayFor: (form) => {
      if (!fitsVector(form) || (form.bits < 16 && !isWhole(form, 16))) return undefined;
      return {
        fits: ({ rows }) => rows === 1,
        cost: () => readingCost(form),
        fusesNorm: () => true,
        launch: (x, options) => product(x, form, options),
      };
    },
    free: () => kernels.free(),
  } satisfies ProductKernel & Record<string, unknown>;
}
