// Products of one token with a matrix or with those of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
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
const DENSE: Reading = { name: "vector", body: denseBody, warps: 4, packs: 16, mostLines: 8 };
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
/** Groups that keep a GPU busy: where there would be fewer, they have fewer rows. */
const BUSY_GROUPS = 264;

/** Weights of `bits` each; of 16 they are not quantized. */
export type VectorForm = { outputs: number; inputs: number; bits: number };

const packsOf = ({ inputs, bits }: VectorForm, shares: number) =>
  Math.ceil((inputs * bits) / (128 * 32 * shares));

export function fitsVector(form: VectorForm): boolean {
  const { outputs, inputs, bits } = form;
  const { warps, mostLines } = readingOf(bits);
  const isWhole = (inputs * bits) % 128 === 0 && outputs % (2 * warps * mostLines) === 0;
  const isPrepared = bits === 16 || inputs <= MOST_PREPARED;
  return isWhole && isPrepared && packsOf(form, warps) <= MOST_PACKS;
}

/** How many warps share a row of the matrix, as few as can; how many rows a warp has at once, a power of two. */
function divided(form: VectorForm, columns: number, isGated: boolean) {
  const { warps, packs: most, mostLines } = readingOf(form.bits);
  const shares = [1, 2].find((count) => packsOf(form, count) <= MOST_PACKS) ?? warps;
  const packs = packsOf(form, shares);
  const fit = Math.max(1, Math.floor(most / (packs * (isGated ? 2 : 1))));
  let lines = Math.min(mostLines, 2 ** Math.floor(Math.log2(fit)));
  const groups = () => columns / ((warps / shares) * lines);
  while (form.bits < 16 && lines > 1 && groups() < BUSY_GROUPS) lines /= 2;
  return { shares, packs, lines, groups: groups() };
}

export type VectorOptions = ProductOptions & {
  /** The weight has a matrix for each expert, of which these (R) are the token's. */
  chosen?: MlxArray | undefined;
};

export class Vectors {
  readonly #kernels: KernelCache;
  readonly #constants: Constants;

  constructor(make: MakeKernel, constants: Constants) {
    this.#kernels = new KernelCache("cuda", make);
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
    const { shares, packs, lines, groups } = divided(form, columns, isGated);
    const sizes = this.#constants.ints(inputs, outputs);
    const isPacked = matrix.kind === "packed";
    const given = {
      x,
      weight: isPacked ? matrix.matrix.weight : matrix.weight,
      ...(isPacked && { scales: matrix.matrix.scales, biases: matrix.matrix.biases! }),
      sizes,
      norm: norm?.weight ?? x,
      numbers: this.#constants.floats(norm?.eps ?? 0),
      residual: residual ?? x,
      chosen: chosen ?? sizes,
    };
    return this.#kernels.run(name, body, given, "made", {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [groups * warps * 32, rows, 1],
      threadGroup: [warps * 32, 1, 1],
      template: {
        T: x.dtype,
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
      },
    });
  }

  free(): void {
    this.#kernels.free();
  }
}
