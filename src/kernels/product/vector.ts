// Products of one token with a matrix or with those of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../../mlx/array.ts";
import type { ProductOptions } from "../../mlx/cpu.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Constants } from "../host/constants.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { productHeaders } from "./headers.ts";
import type { Matrix } from "./matrix.ts";
import packedBody from "./packed-vector.c" with { type: "text" };
import streamBody from "./streamed-vector.c" with { type: "text" };
import denseBody from "./vector.c" with { type: "text" };

/** How a kernel reads a matrix. */
type Reading = {
  name: string;
  body: string;
  warps: number;
  /** Packs of 16 bytes that a lane has at once, of all its rows of the matrix: more would not fit the registers. */
  packs: number;
  mostLines: number;
};
const DENSE: Reading = {
  name: "vector",
  body: denseBody,
  warps: 4,
  packs: 16,
  mostLines: 8,
};
const PACKED: Reading = {
  name: "packed_vector",
  body: packedBody,
  warps: 8,
  packs: 12,
  mostLines: 4,
};
const readingOf = (bits: number) => (bits === 16 ? DENSE : PACKED);

/** Of one row, and of the token. */
const MOST_PACKS = 8;
/** Of a token that a group keeps in shared memory, as it is prepared for a quantized matrix. */
const MOST_PREPARED = 10_240;

/** Weights of `bits` each; of 16 they are not quantized. */
export type VectorForm = { outputs: number; inputs: number; bits: number };

const packsOf = ({ inputs, bits }: VectorForm, shares: number) =>
  Math.ceil((inputs * bits) / (128 * 32 * shares));

export function fitsVector(form: VectorForm): boolean {
  const { outputs, inputs, bits } = form;
  const { warps, mostLines } = readingOf(bits);
  const isWhole = (inputs * bits) % 128 === 0 && outputs % (2 * warps * mostLines) === 0;
  const { shares, packs } = sharing(form);
  const isPrepared = bits === 16 || (packs * shares * 32 * 128) / bits <= MOST_PREPARED;
  return isWhole && isPrepared && packs <= MOST_PACKS;
}

/** How many warps share a row of the matrix, as few as can. */
function sharing(form: VectorForm) {
  const { warps } = readingOf(form.bits);
  const shares = [1, 2].find((count) => packsOf(form, count) <= MOST_PACKS) ?? warps;
  return { shares, packs: packsOf(form, shares) };
}

/**
 * How many rows a warp has at once, a power of two, and how many groups there are. Where they take turns, each has as many as
 * the others, and `resident` of them are to share a multiprocessor: those that it has registers for.
 */
function divided(
  { multiprocessors }: Gpu,
  form: VectorForm,
  columns: number,
  { isGated, isNormed }: Pick<Fused, "isGated" | "isNormed">,
) {
  const { warps, packs: most, mostLines } = readingOf(form.bits);
  const { shares, packs } = sharing(form);
  const halves = isGated ? 2 : 1;
  const fit = Math.max(1, Math.floor(most / (packs * halves)));
  let lines = Math.min(mostLines, 2 ** Math.floor(Math.log2(fit)));
  const steps = () => columns / ((warps / shares) * lines);
  if (form.bits === 16 && !isNormed) return { shares, packs, lines, groups: steps() };
  while (form.bits < 16 && lines > 1 && steps() < 2 * multiprocessors) lines /= 2;
  const isMuch = form.bits === 16 ? packs > 6 : packs * lines * halves > 8;
  const resident = (form.bits === 16 ? 4 : 3) - Number(isMuch);
  const turns = Math.ceil(steps() / (resident * multiprocessors));
  return { shares, packs, lines, groups: Math.ceil(steps() / turns), resident };
}

/** Of a group that streams a quantized matrix: warps that compute, and what each can have of it at once. */
const STREAM_WARPS = 16;
const STREAM_PARTS = 4;
/**
 * More than half of a multiprocessor's: its groups are to be on different ones. And more than 132 KiB: then 164 are for
 * shared memory, and what is launched next has room beside it.
 */
const LEAST_STREAM_BYTES = 136 * 1024;
const MOST_STREAM_BYTES = 192 * 1024;
/** Before the token is there: more would delay it. */
const EARLY_STREAM_BYTES = 70 * 1024;
/** On their way at any time, where groups claim what is behind; and into how many turns all is divided, at least. */
const CLAIMED_STREAM_BYTES = 112 * 1024;
const CLAIMED_TURNS = 6;
/** Whose results are kept until all warps have theirs. */
const KEPT_TILES = 16;

type Fused = { isGated: boolean; isNormed: boolean; isAdded: boolean };

/** How a quantized matrix is streamed, a tile of 8 rows of each half after the other; undefined where it cannot be. */
function streaming(
  { multiprocessors }: Gpu,
  { inputs, bits }: VectorForm,
  span: number,
  columns: number,
  { isGated, isNormed, isAdded }: Fused,
) {
  const steps = (inputs * bits) / 512;
  const isWhole = Number.isInteger(steps) && inputs % span === 0 && columns % 8 === 0;
  if (!isWhole || ![32, 64, 128].includes(span)) return undefined;
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
    const turns = Math.ceil(all / multiprocessors);
    const fit = (bytes: number) => Math.min(turns, Math.floor(bytes / (lines * tileBytes)));
    const isClaimed = !isAdded && fit(room) < turns;
    const slots = isClaimed ? fit(Math.min(room, CLAIMED_STREAM_BYTES)) : fit(room);
    const isPossible =
      Number.isInteger(all) &&
      lines * halves * pairs <= STREAM_PARTS &&
      (slots > 1 || slots === turns) &&
      (!isAdded || turns * lines <= Math.min(KEPT_TILES, warps * 4));
    const groups = isClaimed ? multiprocessors : Math.ceil(all / turns);
    return isPossible ? [{ lines, slots, turns, isClaimed, groups }] : [];
  });
  // With more lines there is less to do for each; but all groups are to have about as many, unless they claim theirs.
  const least = Math.min(...ways.map(({ lines, turns }) => lines * turns));
  const best =
    ways.find(
      ({ isClaimed, turns, lines }) => isClaimed && (turns >= CLAIMED_TURNS || lines === 1),
    ) ?? ways.find(({ lines, turns }) => lines * turns <= 1.1 * least);
  if (!best) return undefined;
  const turnBytes = best.lines * tileBytes;
  const early = Math.max(1, Math.floor(EARLY_STREAM_BYTES / turnBytes));
  const bytes = digitBytes + best.slots * (turnBytes + 16) + 8;
  return { ...best, early, warps, pairs, sharedMemory: Math.max(bytes, LEAST_STREAM_BYTES) };
}

/** How a kernel is launched, but for what is multiplied. */
type VectorLaunch = {
  name: string;
  body: string;
  warps: number;
  groups: number;
  resident?: number | undefined;
  sharedMemory?: number;
  template: Readonly<Record<string, number | boolean>>;
};

/** With a warp more, that asks for the weights. */
function streamLaunch(stream: NonNullable<ReturnType<typeof streaming>>): VectorLaunch {
  const { warps, pairs, lines, slots, early, isClaimed, groups, sharedMemory } = stream;
  return {
    name: `streamed_vector_${sharedMemory}`,
    body: streamBody,
    warps: warps + 1,
    groups,
    resident: 1,
    sharedMemory,
    template: {
      ...{ WARPS: warps, PAIRS: pairs, LINES: lines, SLOTS: slots, KEPT: KEPT_TILES },
      ...{ EARLY: early, CLAIMED: isClaimed },
    },
  };
}

function readLaunch(gpu: Gpu, form: VectorForm, columns: number, fused: Fused): VectorLaunch {
  const { name, body, warps } = readingOf(form.bits);
  const { shares, packs, lines, groups, resident } = divided(gpu, form, columns, fused);
  return {
    name: resident ? `${name}_${resident}` : name,
    body,
    warps,
    groups,
    resident,
    template: { PACKS: packs, LINES: lines, WARPS: warps, SHARES: shares },
  };
}

export type VectorOptions = ProductOptions & {
  /** The weight has a matrix for each expert, of which these (R) are the token's. */
  chosen?: MlxArray | undefined;
};

export class Vectors {
  /** By their bounds: of how many groups share a multiprocessor, for which compilers spare registers. */
  readonly #kernels: KernelCaches;
  readonly #constants: Constants;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu, make: MakeKernel, constants: Constants) {
    this.#kernels = new KernelCaches("cuda", make, productHeaders);
    this.#constants = constants;
    this.#gpu = gpu;
  }

  /** x (1, K), or a row for each expert; matrix (N, K) or (E, N, K) -> (1 or R, N), or where it is gated N / 2 */
  product(
    x: MlxArray,
    matrix: Matrix,
    form: VectorForm,
    { norm, isGated = false, residual, chosen }: VectorOptions,
  ): MlxArray {
    const { outputs, inputs, bits } = form;
    const rows = chosen?.size ?? 1;
    const columns = isGated ? outputs / 2 : outputs;
    const isPacked = matrix.kind === "packed";
    const span = isPacked ? (matrix.quantization.groupSize ?? 64) : 0;
    const fused = { isGated, isNormed: norm !== undefined, isAdded: residual !== undefined };
    const isStreamed = isPacked && !chosen && this.#gpu.hasWgmma;
    const streamed = isStreamed ? streaming(this.#gpu, form, span, columns, fused) : undefined;
    const { name, body, warps, groups, resident, sharedMemory, template } = streamed
      ? streamLaunch(streamed)
      : readLaunch(this.#gpu, form, columns, fused);
    const weight = isPacked ? matrix.matrix.weight : matrix.weight;
    const given = {
      x,
      weight,
      ...(isPacked && { scales: matrix.matrix.scales, biases: matrix.matrix.biases! }),
      norm: norm?.weight ?? x,
      numbers: this.#constants.floats(norm?.eps ?? 0),
      residual: residual ?? x,
      ...(streamed
        ? { claims: this.#constants.counter(streamed.isClaimed ? weight : undefined) }
        : { chosen: chosen ?? x }),
    };
    const launch: KernelLaunch = {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [groups * warps * 32, rows, 1],
      threadGroup: [warps * 32, 1, 1],
      template: {
        T: x.dtype,
        K: inputs,
        N: outputs,
        ...(isPacked && { BITS: bits, SPAN: span }),
        NORMED: fused.isNormed,
        GATED: isGated,
        RESIDUAL: fused.isAdded,
        ...(!streamed && { EXPERTS: chosen !== undefined, EACH: rows / x.shape[0]! }),
        ...template,
        GROUPS: groups,
      },
    };
    const kernels = this.#kernels.with(
      resident ? [`LAUNCH_BOUNDS ${warps * 32}, ${resident}`] : [],
    );
    return kernels.run(name, body, given, "made", launch, sharedMemory);
  }

  free(): void {
    this.#kernels.free();
  }
}
