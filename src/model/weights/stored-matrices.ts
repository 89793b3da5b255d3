// Checks and rearranges matrices of a checkpoint. A matrix has the tensors `name`.weight, .scales, .biases and .bias,
// as far as stored. If columns are not stored in order, `name`.input_order has the index of each column's input.
import { blockOf, type GgufType } from "../../files/gguf.ts";
import type { QuantizationMode } from "../../mlx/ops.ts";
import { computedWords } from "../checkpoint/formats/computed.ts";
import { joined, type RowRun, runsOf } from "../checkpoint/stored/arrangement.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";
import type { StoredTensors } from "./stored-tensors.ts";
import { plainType, type StoredQuantized } from "./tensors.ts";

const kinds = ["weight", "scales", "biases", "bias"];

export class StoredMatrices {
  readonly #stored: StoredTensors;

  constructor(stored: StoredTensors) {
    this.#stored = stored;
  }

  has(name: string): boolean {
    return this.#stored.has(`${name}.weight`);
  }

  /** Returns the kinds of tensors ("weight", "scales", ...) that the file has for this matrix. */
  kindsOf(name: string): string[] {
    return kinds.filter((kind) => this.#stored.has(`${name}.${kind}`));
  }

  /** Throws unless the file has a matrix of this shape. Call it before changing the matrix's name or order. */
  check(name: string, shape: readonly number[]): void {
    if (!this.quantized(name, shape)) this.#stored.expect(`${name}.weight`, shape);
    const bias = `${name}.bias`;
    if (this.#stored.has(bias)) this.#stored.expect(bias, shape.slice(0, -1));
  }

  /** Returns the tensors of a quantized matrix, undefined if dense. Bits and group size follow from the shapes. */
  quantized(name: string, shape: readonly number[]): StoredQuantized | undefined {
    const weight = this.#stored.get(`${name}.weight`);
    const scales = this.#stored.get(`${name}.scales`);
    if (!weight || !scales) return undefined;
    const columns = shape.at(-1)!;
    const bits = (weight.shape.at(-1)! * 32) / columns;
    const groupSize = columns / scales.shape.at(-1)!;
    const mode = modeOf(scales, bits, groupSize);
    const rows = shape.slice(0, -1).join();
    const fits = [weight, scales].every((tensor) => tensor.shape.slice(0, -1).join() === rows);
    const biases =
      mode === "affine" ? this.#stored.expect(`${name}.biases`, scales.shape) : undefined;
    const alike = !biases || biases.format === scales.format;
    if (!mode || !fits || !alike || weight.format !== "U32") {
      const found = `(${weight.shape}) of ${weight.format} with scales (${scales.shape})`;
      throw this.#stored.mismatch(weight.name, shape, `${found} of ${scales.format}`);
    }
    return { weight, scales, biases, quantization: { mode, groupSize, bits } };
  }

  /** Makes a matrix of some rows (`runs`) of another one. `axes`: shape of the rows, if they have several axes. */
  pick(source: string, name: string, runs: readonly RowRun[], axes?: readonly number[]): void {
    this.#keepInputOrder([source], name);
    for (const kind of this.kindsOf(source)) {
      this.#stored.arrange([`${source}.${kind}`], ([stored]) => {
        const [rows, ...rest] = stored!.shape as [number, ...number[]];
        const shape = [...(axes ?? [runs.reduce((sum, { count }) => sum + count, 0)]), ...rest];
        return runsOf(`${name}.${kind}`, stored!, { rows, runs, shape });
      });
    }
  }

  /** Reorders the matrix's rows: puts these runs of rows one after the other. */
  reorder(name: string, runs: readonly RowRun[]): void {
    this.pick(name, `${name}.reordered`, runs);
    this.#stored.rename({ [`${name}.reordered.`]: `${name}.` });
  }

  /** Reorders the inputs: the column that took input i now takes input `placeOf(i)`. */
  orderInputs(name: string, inputs: number, placeOf: (input: number) => number): void {
    const before = this.inputOrder(name) ?? Uint32Array.from({ length: inputs }, (_, i) => i);
    const order = before.map(placeOf);
    this.#stored.arrange([`${name}.weight`], () => wordsOf(`${name}.input_order`, order));
  }

  /** Returns each column's input; undefined if column i takes input i. */
  inputOrder(name: string): Uint32Array | undefined {
    const stored = this.#stored.get(`${name}.input_order`);
    if (!stored) return undefined;
    const bytes = new Uint8Array(stored.bytes);
    stored.read(0, bytes);
    return new Uint32Array(bytes.buffer);
  }

  /** Returns how many adjacent inputs share a scale. */
  inputUnit(name: string, inputs: number): number {
    const weight = this.#stored.get(`${name}.weight`);
    const scales = this.#stored.get(`${name}.scales`);
    if (scales) return inputs / scales.shape.at(-1)!;
    if (!weight || plainType(weight) !== undefined) return 1;
    return blockOf(weight.format as GgufType).items;
  }

  /** Whether matrices have the same storage format and the same input order, so that they can be joined. */
  areAlike(parts: readonly string[]): boolean {
    const tail = (tensor: StoredTensor | undefined) =>
      tensor && [tensor.format, ...tensor.shape.slice(1)].join();
    const tails = kinds.map((kind) =>
      parts.map((part) => tail(this.#stored.get(`${part}.${kind}`))),
    );
    const orders = parts.map((part) => this.inputOrder(part)?.join());
    return [...tails, orders].every((each) => each.every((one) => one === each[0]));
  }

  /** Joins matrices into one. Requires that `areAlike` holds for them. */
  join(name: string, parts: readonly string[], join: typeof joined): void {
    for (const kind of this.kindsOf(parts[0]!)) {
      const names = parts.map((part) => `${part}.${kind}`);
      this.#stored.arrange(names, (tensors) => join(`${name}.${kind}`, tensors));
    }
    this.#keepInputOrder(parts, name);
  }

  /**
   * Appends `count` experts to a tensor of experts (E, out, in). The matrix `more` has the new ones one below the
   * other, (count * out, in), or with `sideBySide` (out, count * in). Requires that `isLike` holds.
   */
  addExperts(
    name: string,
    experts: string,
    { more, count, sideBySide }: { more: string; count: number; sideBySide: boolean },
  ): void {
    for (const kind of this.kindsOf(experts)) {
      this.#stored.arrange([`${experts}.${kind}`, `${more}.${kind}`], ([stored, extra]) => {
        const [rows, columns] = extra!.shape as [number, number];
        const shape = sideBySide ? [count, rows, columns / count] : [count, rows / count, columns];
        const runs = Array.from({ length: count * rows }, (_, i) => {
          return { first: (i % rows) * count + Math.floor(i / rows), count: 1 };
        });
        const apart =
          sideBySide && count > 1
            ? runsOf(extra!.name, extra!, { rows: rows * count, runs, shape })
            : { ...extra!, shape };
        return joined(`${name}.${kind}`, [stored!, apart]);
      });
    }
  }

  /** Whether two matrices have the same storage format and no bias, and `other` has `factor` times the columns. */
  isLike(name: string, other: string, factor: number): boolean {
    return kinds.every((kind) => {
      const [own, its] = [name, other].map((each) => this.#stored.get(`${each}.${kind}`));
      if (!own || !its || kind === "bias") return own === its;
      return own.format === its.format && own.shape.at(-1)! * factor === its.shape.at(-1);
    });
  }

  #keepInputOrder(sources: readonly string[], name: string): void {
    const orders = sources.map((source) => `${source}.input_order`);
    if (!this.#stored.has(orders[0]!)) return;
    this.#stored.arrange(orders, ([order]) => ({ ...order!, name: `${name}.input_order` }));
  }
}

/** MLX's float formats by bits and group size. */
const floatModes: Record<string, QuantizationMode> = {
  "4/32": "mxfp4",
  "8/32": "mxfp8",
  "4/16": "nvfp4",
};

/** Returns MLX's quantization mode for a stored format; undefined if MLX has none for it. */
function modeOf({ format }: StoredTensor, bits: number, groupSize: number) {
  if (format === "U8") return floatModes[`${bits}/${groupSize}`];
  const isAffine = [2, 3, 4, 5, 6, 8].includes(bits) && [32, 64, 128].includes(groupSize);
  return isAffine && ["F32", "F16", "BF16"].includes(format) ? "affine" : undefined;
}

export function wordsOf(name: string, words: Uint32Array): StoredTensor {
  return computedWords({ name, shape: [words.length], fill: (target) => target.set(words) });
}
