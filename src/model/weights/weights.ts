// A checkpoint's tensors as the parts of a model, in the precision that suits the device: matrices stay
// quantized as they are stored where the device has a product for them, and are dequantized where not.
import type {
  Device,
  ExpertLinear,
  ExpertProduct,
  FloatType,
  HeadLinear,
  Linear,
} from "../../device/device.ts";
import { gateHalves, reordered, unfused } from "../../device/linear.ts";
import { blockOf, type GgufType } from "../../files/gguf.ts";
import type { Matrix } from "../../kernels/product/matrix.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import { add, astype, concatenate, type QuantizationMode } from "../../mlx/ops.ts";
import { Scope } from "../../mlx/scope.ts";
import type { Checkpoint } from "../checkpoint/checkpoint.ts";
import { computedWords } from "../checkpoint/formats/computed.ts";
import {
  columnsOf,
  columnsThatTake,
  joined,
  joinedExperts,
  orderedRuns,
  type RowRun,
  runsOf,
} from "../checkpoint/stored/arrangement.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";
import { allLogits, ownTokens } from "./divided-vocabulary.ts";
import {
  countOf,
  type Extent,
  type Extents,
  evenSliceOf,
  leastCommonMultiple,
  partsOf,
  type Slice,
  sliceOf,
  wholeOf,
} from "./extents.ts";
import { evenly, type LayerSplit, rankStage, type Stage } from "./stages.ts";
import { type OnProgress, TensorLedger } from "./tensor-ledger.ts";
import {
  loadDense,
  loadDequantized,
  loadPlain,
  loadRepacked,
  packed,
  plainType,
  type StoredQuantized,
} from "./tensors.ts";

export type Embedding = {
  /** tokens (T) -> (T, D) */
  lookup(tokens: MlxArray): MlxArray;
  /** x (T, D) -> (T, vocabulary), for models whose output matrix is the same. */
  readonly asLinear: Linear;
};

export type WeightOptions = {
  device: Device;
  /** Instead of the type that the device and the file suggest. */
  dtype?: FloatType | undefined;
  /** On CUDA: quantized matrices are dequantized once as well, and not in each step with many rows. */
  keepDequantized?: boolean | undefined;
  /** The ranks that the weights are divided among: parts of every layer, or some of the layers. */
  group?: Group | undefined;
  parallel?: Parallel | undefined;
  /** Where each has some of the layers: which; as many unless it says. */
  layers?: LayerSplit | undefined;
  /** Of all layers, where this rank has some of them: how many of the latest tokens they see. */
  windows?: readonly (number | undefined)[] | undefined;
  onProgress?: OnProgress | undefined;
};

/**
 * What a matrix may have in a file, under its name. A matrix whose columns are in an order of their own also has an
 * `input_order`: which input each column takes.
 */
const matrixKinds = ["weight", "scales", "biases", "bias"];

export class Weights {
  readonly device: Device;
  readonly dtype: FloatType;
  /** Where ranks have parts of every layer. */
  readonly group: Group | undefined;
  /** Where they have some of the layers. */
  readonly stage: Stage | undefined;
  readonly windows: readonly (number | undefined)[];
  readonly #keepDequantized: boolean;
  readonly #ledger: TensorLedger;

  constructor(checkpoint: Checkpoint, options: WeightOptions) {
    const { device, dtype, keepDequantized = false, group, parallel, onProgress } = options;
    const { windows = [], layers = evenly(group?.size ?? 1) } = options;
    this.device = device;
    this.dtype = dtype ?? device.computeType(storedType(checkpoint));
    this.group = parallel === "pipeline" ? undefined : group;
    if (group && parallel === "pipeline") this.stage = rankStage(group, this.dtype, layers);
    this.windows = windows;
    this.#keepDequantized = keepDequantized;
    this.#ledger = new TensorLedger(checkpoint, onProgress, device.isSketch);
  }

  has(name: string): boolean {
    return this.#ledger.get(name) !== undefined;
  }

  /** What the file has of tensors whose names begin so. */
  storedBytes(prefix: string): number {
    return this.#ledger.names(prefix).reduce((sum, name) => sum + this.#ledger.find(name).bytes, 0);
  }

  /** Whether a tensor has such a name. */
  hasAny(name: RegExp): boolean {
    return this.#ledger.names("").some((each) => name.test(each));
  }

  /** As the file has it; undefined where it has none. */
  shapeOf(name: string): readonly number[] | undefined {
    return this.#ledger.get(name)?.shape;
  }

  /** A vector of a norm, a bias and the like. */
  tensor(name: string, shape: readonly number[], dtype = this.dtype): MlxArray {
    const stored = this.#ledger.stored(name, shape);
    return this.#ledger.own(loadDense(stored, dtype, this.device), stored);
  }

  /** This rank's part of a tensor along its first axis, whatever axes the file gives as many numbers. */
  part(
    name: string,
    own: Extents,
    rest: readonly number[] = [],
    dtype: FloatType = this.dtype,
  ): MlxArray {
    const parts = partsOf(own);
    const [whole, shape] = [wholeOf, countOf].map((size) => [sumOf(parts.map(size)), ...rest]) as [
      number[],
      number[],
    ];
    const { shape: found } = this.#ledger.find(name);
    const sizeOf = (axes: readonly number[]) => axes.reduce((a, b) => a * b, 1);
    if (sizeOf(found) === sizeOf(whole)) this.reshape(name, found, whole);
    if (parts.some((each) => typeof each !== "number")) {
      this.#ledger.stored(name, whole);
      const rows = { rows: whole[0]!, runs: runsIn(parts, 0), shape };
      this.#ledger.cut(name, (stored) => orderedRuns(stored, rows));
    }
    return this.tensor(name, shape, dtype);
  }

  /** As many numbers, whatever axes the file gives them. */
  vector(name: string, size: number, dtype = this.dtype): MlxArray {
    const { shape } = this.#ledger.find(name);
    if (shape.reduce((a, b) => a * b, 1) === size) this.reshape(name, shape, [size]);
    return this.tensor(name, [size], dtype);
  }

  /** One number (1). */
  scalar(name: string, dtype = this.dtype): MlxArray {
    return this.vector(name, 1, dtype);
  }

  /**
   * This rank's part of an axis, in multiples of `unit`. `inputOf`: matrices that take the axis as their input. All of
   * it where it cannot be divided so.
   */
  divide(size: number, { unit = 1, inputOf = [], ...division }: Division = {}): Extent {
    const { group } = this;
    if (!group) return size;
    const units = inputOf.map((name) => this.#inputUnit(name, size));
    const each = leastCommonMultiple(unit, ...units);
    const parts = Array.from({ length: group.size }, (_, rank) => {
      const ranks = { rank, size: group.size };
      return division.sliceOf?.(each, ranks) ?? sliceOf(size, each, ranks);
    });
    const canDivide = inputOf.every((name, i) => this.#hasRunsOf(name, parts, units[i]!));
    return canDivide ? parts[group.rank]! : size;
  }

  /** Adds up what ranks make of their parts of an axis; undefined where each has all of it. */
  totals(input: Extent): Total | undefined {
    const { group } = this;
    return group && typeof input !== "number" ? (part) => group.allSum(part) : undefined;
  }

  /**
   * `name`.weight, and `name`.bias where the file has one. Outputs may be several parts, one below the other. With a
   * part of its inputs, what ranks make is added up.
   */
  linear(name: string, inputs: Extent, outputs: Extents): Linear {
    const parts = partsOf(outputs);
    const size = sumOf(parts.map(countOf));
    this.#cut(name, [], parts, [inputs]);
    const matrix = this.#matrix(name, [size, countOf(inputs)]);
    const product = this.#linear(matrix, this.#bias(name, [size], inputs));
    const order = this.#ledger.get(`${name}.input_order`);
    const ordered = order
      ? reordered(product, this.#ledger.own(loadPlain(order, this.device), order))
      : product;
    const total = this.totals(inputs);
    if (!total) return ordered;
    // Every rank adds the residual: all build one graph, and so the same collectives in one order.
    return (x, { residual, ...fused } = {}) => {
      const whole = total(ordered(x, fused));
      return residual ? add(residual, whole) : whole;
    };
  }

  /**
   * Several matrices of one input as one: a single product is faster. Where the file keeps them in
   * different formats they stay apart, and their outputs are concatenated.
   */
  joined(
    name: string,
    parts: readonly string[],
    inputs: number,
    outputs: readonly Extents[],
  ): Linear {
    if (!this.#areAlike(parts)) {
      const apart = parts.map((part, i) => this.linear(part, inputs, outputs[i]!));
      return unfused(
        (x) =>
          concatenate(
            apart.map((each) => each(x)),
            -1,
          ),
        this.device.gate,
      );
    }
    for (const [i, part] of parts.entries()) {
      const own = partsOf(outputs[i]!);
      this.check(part, [sumOf(own.map(wholeOf)), inputs]);
      this.#cut(part, [], own, [inputs]);
    }
    this.#join(name, parts, joined);
    const orders = parts.map((part) => `${part}.input_order`);
    if (this.has(orders[0]!)) {
      this.arrange(orders, ([order]) => ({ ...order!, name: `${name}.input_order` }));
    }
    return this.linear(name, inputs, sumOf(outputs.flatMap(partsOf).map(countOf)));
  }

  /** Ranks have parts of the vocabulary. */
  embedding(name: string, vocabulary: number, dims: number): Embedding {
    const { group } = this;
    const own = group ? evenSliceOf(vocabulary, group) : vocabulary;
    this.#cut(name, [], [own], [dims]);
    const matrix = this.#matrix(name, [countOf(own), dims]);
    const rows = (tokens: MlxArray) => this.device.lookup(matrix, tokens, this.dtype);
    // Made when it is asked for: devices may keep a copy of a matrix that they multiply by.
    const asLinear = () => this.#ofVocabulary(this.#linear(matrix, undefined), own);
    return {
      lookup: group && typeof own !== "number" ? ownTokens(rows, own, group) : rows,
      get asLinear() {
        return asLinear();
      },
    };
  }

  /** The output matrix: x (T, D) -> (T, vocabulary) */
  head(name: string, dims: number, vocabulary: number): Linear {
    const own = this.group ? evenSliceOf(vocabulary, this.group) : vocabulary;
    return this.#ofVocabulary(this.linear(name, dims, own), own);
  }

  /** With a part of the inputs each rank makes its part of a sum, which `totals` adds up. */
  experts(name: string, count: number, inputs: Extent, outputs: Extent): ExpertLinear {
    this.#cut(name, [count], [outputs], [inputs]);
    const dtype = this.device.expertType(this.dtype);
    const matrix = this.#matrix(name, [count, countOf(outputs), countOf(inputs)], dtype);
    const bias = this.#bias(name, [count, countOf(outputs)], inputs, dtype);
    return this.device.experts(matrix, bias, (view) => this.#ledger.keep(view));
  }

  /**
   * A matrix for each head (heads, outputs, inputs), or transposed. They are few, and dequantized: MLX has no quick
   * product of many heads with quantized ones on all devices.
   */
  byHead(
    name: string,
    heads: Extent,
    inputs: number,
    outputs: number,
    { isTransposed = false } = {},
  ): HeadLinear {
    const each = isTransposed ? [inputs, outputs] : [outputs, inputs];
    this.#cut(name, [], [heads], each);
    const shape = [countOf(heads), ...each];
    const keepView = (view: MlxArray) => this.#ledger.keep(view);
    return this.device.headLinear(this.#dense(name, shape), isTransposed, keepView);
  }

  /** Several matrices of one input and shape as one, expert by expert. As `joined` is. */
  joinedExperts(
    name: string,
    parts: readonly string[],
    count: number,
    inputs: number,
    outputs: Extent,
  ): ExpertLinear {
    if (!this.#areAlike(parts)) {
      const apart = parts.map((part) => this.experts(part, count, inputs, outputs));
      const product: ExpertProduct = (x, experts, { gating, sorted = false } = {}) => {
        const made = apart.map((each) => each(x, experts, { sorted }));
        const whole = concatenate(made, -1); // (R, parts * outputs)
        return gating ? gateHalves(whole, gating, this.device.gate) : whole;
      };
      return Object.assign(product, { sortedRows: apart[0]!.sortedRows });
    }
    for (const part of parts) {
      this.check(part, [count, wholeOf(outputs), inputs]);
      this.#cut(part, [count], [outputs], [inputs]);
    }
    this.#join(name, parts, joinedExperts);
    return this.experts(name, count, inputs, parts.length * countOf(outputs));
  }

  /**
   * Matrices (E, out, in), and one that is `count` more of them: (count * out, in), or (out, count * in) with its parts
   * side by side. Only where the file keeps both in one format (`isLike`).
   */
  addExperts(
    name: string,
    experts: string,
    { more, count, sideBySide }: { more: string; count: number; sideBySide: boolean },
  ): void {
    for (const kind of matrixKinds) {
      if (!this.has(`${experts}.${kind}`)) continue;
      this.arrange([`${experts}.${kind}`, `${more}.${kind}`], ([stored, extra]) => {
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

  /** Whether rows of both matrices, with so many times the columns in the other, are kept in one format. */
  isLike(name: string, other: string, factor: number): boolean {
    return matrixKinds.every((kind) => {
      const [own, its] = [name, other].map((each) => this.#ledger.get(`${each}.${kind}`));
      if (!own || !its || kind === "bias") return own === its;
      return own.format === its.format && own.shape.at(-1)! * factor === its.shape.at(-1);
    });
  }

  /** Numbers of our own that live as long as the weights. */
  constant(values: Float32Array, shape: readonly number[] = [values.length]): MlxArray {
    using _ = new Scope();
    return this.#ledger.keep(array(values, [...shape]));
  }

  /** A number of our own (1), of the type that the model computes in. */
  number(value: number): MlxArray {
    return this.computed(() => astype(array(Float32Array.of(value)), this.dtype));
  }

  /** An array of our own making that lives as long as the weights. */
  computed(make: () => MlxArray): MlxArray {
    return this.#ledger.compute(make);
  }

  /** Gives a tensor that the file holds in pieces, or in another order, the name and shape we ask for. */
  arrange(sources: readonly string[], arrange: (stored: StoredTensor[]) => StoredTensor): void {
    this.#ledger.arrange(sources, arrange);
  }

  /** Other axes for the same numbers. */
  reshape(name: string, from: readonly number[], to: readonly number[]): void {
    this.#ledger.stored(name, from);
    this.arrange([name], ([stored]) => ({ ...stored!, shape: to }));
  }

  /** Throws where a matrix is not what it should be, under its own name. */
  check(name: string, shape: readonly number[]): void {
    if (!this.#quantized(name, shape)) this.#ledger.stored(`${name}.weight`, shape);
    if (this.has(`${name}.bias`)) this.#ledger.stored(`${name}.bias`, shape.slice(0, -1));
  }

  /** Some rows of a matrix and its bias, run after run, as one of their own; `axes` where rows have several. */
  pick(source: string, name: string, runs: readonly RowRun[], axes?: readonly number[]): void {
    const order = `${source}.input_order`;
    if (this.has(order)) {
      this.arrange([order], ([stored]) => ({ ...stored!, name: `${name}.input_order` }));
    }
    for (const kind of matrixKinds) {
      if (!this.has(`${source}.${kind}`)) continue;
      this.arrange([`${source}.${kind}`], ([stored]) => {
        const [rows, ...rest] = stored!.shape as [number, ...number[]];
        const shape = [...(axes ?? [runs.reduce((sum, { count }) => sum + count, 0)]), ...rest];
        return runsOf(`${name}.${kind}`, stored!, { rows, runs, shape });
      });
    }
  }

  /** The rows of a matrix and its bias in this order. */
  reorder(name: string, runs: readonly RowRun[]): void {
    this.pick(name, `${name}.reordered`, runs);
    this.rename({ [`${name}.reordered.`]: `${name}.` });
  }

  /** The columns of a matrix take so many inputs from other places. */
  orderInputs(name: string, inputs: number, placeOf: (input: number) => number): void {
    const before = this.#inputOrder(name) ?? Uint32Array.from({ length: inputs }, (_, i) => i);
    const order = before.map(placeOf);
    this.arrange([`${name}.weight`], () => wordsOf(`${name}.input_order`, order));
  }

  /** Other names for all tensors that have these parts in theirs, one part after the other. */
  renameParts(parts: Readonly<Record<string, string>>): void {
    const all = Object.entries(parts);
    this.renameEach((name) => all.reduce((now, [from, to]) => now.replace(from, to), name));
  }

  /** Each tensor by another name, or by the same. */
  renameEach(rename: (name: string) => string): void {
    for (const name of this.#ledger.names("")) {
      const renamed = rename(name);
      if (renamed !== name) this.#ledger.rename(name, renamed);
    }
  }

  /** Other names for all tensors that these begin with. */
  rename(names: Readonly<Record<string, string>>): void {
    for (const [from, to] of Object.entries(names)) {
      for (const name of this.#ledger.names(from)) {
        this.#ledger.rename(name, to + name.slice(from.length));
      }
    }
  }

  /** Tensors that no part of the model asks for. */
  leaveOut(names: RegExp): void {
    this.#ledger.leaveOut(names);
  }

  /** Throws where the file has tensors that the configuration does not account for. */
  finish(ignored: readonly RegExp[]): void {
    // Other ranks have the other layers.
    if (!this.stage) this.#ledger.finish(ignored);
  }

  /** How many bytes of arrays there are. */
  get bytes(): number {
    return this.#ledger.bytes;
  }

  free(): void {
    this.#ledger.free();
  }

  #linear(matrix: Matrix, bias: MlxArray | undefined): Linear {
    const linear = this.device.linear(matrix, {
      dtype: this.dtype,
      bias,
      keepDequantized: this.#keepDequantized,
      keepView: (view) => this.#ledger.keep(view),
      keepWeight: (make) => this.#ledger.compute(make),
    });
    return matrix.kind === "dense" && !bias
      ? Object.assign(linear, { dense: matrix.weight })
      : linear;
  }

  /** With a part of the inputs it is the first rank's: it is to be added once. */
  #bias(
    name: string,
    shape: readonly number[],
    inputs: Extent,
    dtype = this.dtype,
  ): MlxArray | undefined {
    if (!this.has(`${name}.bias`)) return undefined;
    if (typeof inputs === "number" || this.group?.rank === 0) {
      return this.tensor(`${name}.bias`, shape, dtype);
    }
    this.#ledger.skip(`${name}.bias`);
    return undefined;
  }

  #ofVocabulary(product: Linear, own: Extent): Linear {
    const { group } = this;
    return group && typeof own !== "number" ? allLogits(product, own, group) : product;
  }

  /** Of matrices (...leading, outputs, ...rest) this rank's part, where they are not whole. The last axis may be one. */
  #cut(
    name: string,
    leading: readonly number[],
    outputs: readonly Extent[],
    rest: readonly Extent[],
  ): void {
    const inputs = rest.at(-1)!;
    if ([...outputs, inputs].every((each) => typeof each === "number")) return;
    const rows = sumOf(outputs.map(wholeOf));
    this.check(name, [...leading, rows, ...rest.map(wholeOf)]);
    const count = leading.reduce((a, b) => a * b, 1);
    const runs = Array.from({ length: count }, (_, i) => runsIn(outputs, i * rows)).flat();
    const own = sumOf(outputs.map(countOf));
    const columns = typeof inputs === "number" ? undefined : this.#columns(name, inputs);
    for (const kind of matrixKinds) {
      const part = `${name}.${kind}`;
      if (!this.has(part)) continue;
      this.#ledger.cut(part, (stored) => {
        const shape = [...leading, own, ...stored.shape.slice(leading.length + 1)];
        const some =
          own === rows ? stored : orderedRuns(stored, { rows: count * rows, runs, shape });
        return kind === "bias" || !columns ? some : columnsOf(some, columns);
      });
    }
  }

  /** The columns that take these inputs, in an order that is then one of these inputs alone. */
  #columns(name: string, inputs: Slice): { runs: readonly RowRun[]; of: number } {
    const { first, count, of } = inputs;
    const order = this.#inputOrder(name);
    if (!order) return { runs: [inputs], of };
    const isOwn = (input: number) => input >= first && input < first + count;
    const own = order.filter(isOwn).map((input) => input - first);
    this.#ledger.cut(`${name}.input_order`, (stored) => wordsOf(stored.name, own));
    return { runs: columnsThatTake(order, inputs), of };
  }

  /** Which input each column takes, if not that of its own place. */
  #inputOrder(name: string): Uint32Array | undefined {
    const stored = this.#ledger.get(`${name}.input_order`);
    return stored && new Uint32Array(bytesOf(stored).buffer);
  }

  /** Whether the columns of each part of the inputs are runs of what is quantized together. */
  #hasRunsOf(name: string, parts: readonly Extent[], unit: number): boolean {
    const order = this.#inputOrder(name);
    if (!order) return true;
    const isWhole = ({ first, count }: RowRun) => first % unit === 0 && count % unit === 0;
    return parts.every(
      (part) => typeof part === "number" || columnsThatTake(order, part).every(isWhole),
    );
  }

  /** So many inputs of a matrix are quantized together. */
  #inputUnit(name: string, inputs: number): number {
    const [weight, scales] = ["weight", "scales"].map((kind) =>
      this.#ledger.get(`${name}.${kind}`),
    );
    if (scales) return inputs / scales.shape.at(-1)!;
    if (!weight || plainType(weight) !== undefined) return 1;
    return blockOf(weight.format as GgufType).items;
  }

  /** Whether the file keeps all of them in one format. */
  #areAlike(parts: readonly string[]): boolean {
    const tail = (tensor: StoredTensor | undefined) =>
      tensor && [tensor.format, ...tensor.shape.slice(1)].join();
    const kinds = matrixKinds.map((kind) =>
      parts.map((part) => tail(this.#ledger.get(`${part}.${kind}`))),
    );
    const orders = parts.map((part) => this.#inputOrder(part)?.join());
    return [...kinds, orders].every((each) => each.every((one) => one === each[0]));
  }

  #join(name: string, parts: readonly string[], join: typeof joined): void {
    for (const kind of matrixKinds) {
      const names = parts.map((part) => `${part}.${kind}`);
      if (!this.has(names[0]!)) continue;
      this.arrange(names, (tensors) => join(`${name}.${kind}`, tensors));
    }
  }

  #matrix(name: string, shape: readonly number[], dtype = this.dtype): Matrix {
    const { device } = this;
    const ledger = this.#ledger;
    const quantized = this.#quantized(name, shape);
    if (!quantized) {
      const stored = ledger.stored(`${name}.weight`, shape);
      const isQuantized = plainType(stored) === undefined;
      const repacked =
        isQuantized && device.keepsQuantized(dtype) ? this.#repacked(stored, dtype) : undefined;
      if (repacked) return repacked;
      return { kind: "dense", weight: this.#dense(name, shape, dtype) };
    }
    const { weight, scales, biases, quantization } = quantized;
    if (!device.keepsQuantized(dtype, quantization)) {
      return { kind: "dense", weight: this.#dense(name, shape, dtype) };
    }
    const load = (part: StoredTensor) =>
      part === weight || quantization.mode !== "affine"
        ? loadPlain(part, device)
        : loadDense(part, device.scaleType(plainType(part) as FloatType, dtype), device);
    const parts = [weight, scales, ...(biases ? [biases] : [])];
    const [w, s, b] = parts.map((part) => ledger.own(packed(load(part), device), part));
    return { kind: "packed", matrix: { weight: w!, scales: s!, biases: b }, quantization };
  }

  #dense(name: string, shape: readonly number[], dtype = this.dtype): MlxArray {
    const { device } = this;
    const quantized = this.#quantized(name, shape);
    if (!quantized) {
      const stored = this.#ledger.stored(`${name}.weight`, shape);
      return this.#ledger.own(loadDense(stored, dtype, device), stored);
    }
    const { weight, scales, biases } = quantized;
    const dense = loadDequantized(quantized, shape, dtype, device);
    return this.#ledger.own(dense, weight, scales, ...(biases ? [biases] : []));
  }

  /** A GGUF matrix that a layout of MLX's holds exactly. */
  #repacked(stored: StoredTensor, dtype: FloatType): Matrix | undefined {
    const { device } = this;
    const load = (type: FloatType) =>
      loadRepacked(stored, type === "float32" ? type : "float16", device);
    let loaded = load(device.scaleType("float16", dtype));
    if (!loaded) return undefined;
    if (!loaded.isExact && dtype === "float32") {
      for (const part of Object.values(loaded.matrix)) part?.free();
      loaded = load("float32")!;
    }
    const { weight, scales, biases } = loaded.matrix;
    this.#ledger.own(scales);
    if (biases) this.#ledger.own(biases);
    this.#ledger.own(weight, stored);
    return { kind: "packed", ...loaded };
  }

  /** The three tensors of a matrix that MLX quantized. Bits and group size follow from the shapes. */
  #quantized(name: string, shape: readonly number[]): StoredQuantized | undefined {
    const ledger = this.#ledger;
    const [weight, scales] = [ledger.get(`${name}.weight`), ledger.get(`${name}.scales`)];
    if (!weight || !scales) return undefined;
    const columns = shape.at(-1)!;
    const bits = (weight.shape.at(-1)! * 32) / columns;
    const groupSize = columns / scales.shape.at(-1)!;
    const mode = modeOf(scales, bits, groupSize);
    const rows = (tensor: StoredTensor) => tensor.shape.slice(0, -1).join();
    const fits = [weight, scales].every((tensor) => rows(tensor) === shape.slice(0, -1).join());
    const biases = mode === "affine" ? ledger.stored(`${name}.biases`, scales.shape) : undefined;
    const alike = !biases || biases.format === scales.format;
    if (!mode || !fits || !alike || weight.format !== "U32") {
      const found = `(${weight.shape}) of ${weight.format} with scales (${scales.shape})`;
      throw ledger.disagreement(weight.name, shape, `${found} of ${scales.format}`);
    }
    return { weight, scales, biases, quantization: { mode, groupSize, bits } };
  }
}

/** Parts of every layer, or some of the layers. */
export type Parallel = "tensor" | "pipeline";

export type Division = {
  unit?: number;
  inputOf?: readonly string[];
  /** A rank's part in multiples of a unit, where that is not as much for each rank; all of it for all ranks or for none. */
  sliceOf?: (unit: number, ranks: { rank: number; size: number }) => Extent;
};

/** What a rank has made -> the sum over all ranks. */
export type Total = (part: MlxArray) => MlxArray;

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => a + b, 0);
}

/** Rows of these parts, one below the other from `start` on. */
function runsIn(parts: readonly Extent[], start: number): RowRun[] {
  let at = start;
  return parts.map((part) => {
    const first = at + (typeof part === "number" ? 0 : part.first);
    at += wholeOf(part);
    return { first, count: countOf(part) };
  });
}

/** The float formats have one group size each. */
const floatModes: Record<string, QuantizationMode> = {
  "4/32": "mxfp4",
  "8/32": "mxfp8",
  "4/16": "nvfp4",
};

/** Undefined for what MLX has no code for. */
function modeOf({ format }: StoredTensor, bits: number, groupSize: number) {
  if (format === "U8") return floatModes[`${bits}/${groupSize}`];
  const isAffine = [2, 3, 4, 5, 6, 8].includes(bits) && [32, 64, 128].includes(groupSize);
  return isAffine && ["F32", "F16", "BF16"].includes(format) ? "affine" : undefined;
}

/** The type that a model was stored in, of those it can compute in. */
function storedType({ format, tensors, config }: Checkpoint): FloatType {
  if (format === "gguf") return "float16";
  const norm = tensors.get("model.norm.weight");
  const stored = [config.torch_dtype, config.dtype, norm && plainType(norm)];
  return stored.find(isFloatType) ?? "bfloat16";
}

function wordsOf(name: string, words: Uint32Array): StoredTensor {
  return computedWords({ name, shape: [words.length], fill: (target) => target.set(words) });
}

/** What a tensor of few bytes holds. */
function bytesOf(stored: StoredTensor): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(stored.bytes);
  stored.read(0, bytes);
  return bytes;
}

function isFloatType(name: unknown): name is FloatType {
  return name === "float32" || name === "float16" || name === "bfloat16";
}
