// Products of one token with a matrix or with those of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import type { KernelLaunch, MakeKernel } from "../mlx/kernel.ts";
import type { Constants } from "./constants.ts";
import { KernelCache } from "./kernel-cache.ts";
import packedBody from "./packed-vector.c" with { type: "text" };
import type { Matrix } from "./product.ts";
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

/** Of a Hopper GPU; the largest of others have about as many. */
const MULTIPROCESSORS = 132;

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
function divided(form: VectorForm, columns: number, isGated: boolean, isNormed: boolean) {
  const { warps, packs: most, mostLines } = readingOf(form.bits);
  const { shares, packs } = sharing(form);
  const halves = isGated ? 2 : 1;
  const fit = Math.max(1, Math.floor(most / (packs * halves)));
  let lines = Math.min(mostLines, 2 ** Math.floor(Math.log2(fit)));
  const steps = () => columns / ((warps / shares) * lines);
  if (form.bits === 16 && !isNormed) return { shares, packs, lines, groups: steps() };
  while (form.bits < 16 && lines > 1 && steps() < 2 * MULTIPROCESSORS) lines /= 2;
  const isMuch = form.bits === 16 ? packs > 6 : packs * lines * halves > 8;
  const resident = (form.bits === 16 ? 4 : 3) - Number(isMuch);
  const turns = Math.ceil(steps() / (resident * MULTIPROCESSORS));
  return { shares, packs, lines, groups: Math.ceil(steps() / turns), resident };
}

export type VectorOptions = ProductOptions & {
  /** The weight has a matrix for each expert, of which these (R) are the token's. */
  chosen?: MlxArray | undefined;
};

export class Vectors {
  readonly #make: MakeKernel;
  /** By their bounds: of how many groups share a multiprocessor, for which compilers spare registers. */
  readonly #kernels = new Map<string, KernelCache>();
  readonly #constants: Constants;

  constructor(make: MakeKernel, constants: Constants) {
    this.#make = make;
    this.#constants = constants;
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
    const { name, body, warps } = readingOf(bits);
    const { shares, packs, lines, groups, resident } = divided(
      form,
      columns,
      isGated,
      norm !== undefined,
    );
    const isPacked = matrix.kind === "packed";
    const given = {
      x,
      weight: isPacked ? matrix.matrix.weight : matrix.weight,
      ...(isPacked && { scales: matrix.matrix.scales, biases: matrix.matrix.biases! }),
      norm: norm?.weight ?? x,
      numbers: this.#constants.floats(norm?.eps ?? 0),
      residual: residual ?? x,
      chosen: chosen ?? x,
    };
    const launch: KernelLaunch = {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [groups * warps * 32, rows, 1],
      threadGroup: [warps * 32, 1, 1],
      template: {
        T: x.dtype,
        K: inputs,
        N: outputs,
        ...(isPacked && { BITS: bits, SPAN: matrix.quantization.groupSize ?? 64 }),
        NORMED: norm !== undefined,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        EXPERTS: chosen !== undefined,
        EACH: rows / x.shape[0]!,
        PACKS: packs,
        LINES: lines,
        WARPS: warps,
        SHARES: shares,
        GROUPS: groups,
      },
    };
    const bounds = resident ? [`LAUNCH_BOUNDS ${warps * 32}, ${resident}`] : [];
    const key = bounds.join();
    const kernels = this.#kernels.get(key) ?? new KernelCache("cuda", this.#make, bounds);
    this.#kernels.set(key, kernels);
    return kernels.run(resident ? `${name}_${resident}` : name, body, given, "made", launch);
  }

  free(): void {
    for (const each of this.#kernels.values()) each.free();
  }
}
