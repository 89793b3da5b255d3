// A checkpoint's tensors as the parts of a model, in the precision that suits the device: matrices stay
// packed as they are stored where there is a quick product for them. On a CPU that is our own, with 4 or 8
// bits; others are unpacked to float32, for MLX has but scalar loops. Weights owns every array it makes
// and frees them all with `free`.
import type { Backend } from "../../ffi/native.ts";
import { LoadError, quoted } from "../files/load-error.ts";
import { fitsProduct, isQuickest, type Matrix, type Packed, Products } from "../kernels/product.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { fitsPackedProduct, type ProductOptions, packedProduct, runsOwn } from "../mlx/cpu.ts";
import {
  add,
  addmm,
  concatenate,
  dequantize,
  expandDims,
  gatherMm,
  gatherQmm,
  matmul,
  type Quantization,
  type QuantizationMode,
  quantizedMatmul,
  split,
  swapAxes,
  take,
} from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import { joined } from "./arrangement.ts";
import type { Checkpoint, StoredTensor } from "./checkpoint.ts";
import { type Gating, swiglu } from "./gating.ts";
import {
  type FloatType,
  loadAffine,
  loadDense,
  loadPlain,
  loadUnpacked,
  plainType,
  type StoredQuantized,
} from "./tensors.ts";

/** With what a kernel needs to do the same. */
export type Norm = ((x: MlxArray) => MlxArray) & { weight: MlxArray; eps: number };

/** What stands around a product: some devices do all of it at once. */
export type Around = {
  /** Before it. */
  norm?: Norm | undefined;
  /** Makes one of the two halves that come out. */
  gating?: Gating | undefined;
  /** Added in the end. */
  residual?: MlxArray | undefined;
};

/** x (..., in) -> (..., out), with what is around it. */
export type Linear = (x: MlxArray, around?: Around) => MlxArray;

export type Embedding = {
  /** tokens (T) -> (T, D) */
  lookup(tokens: MlxArray): MlxArray;
  /** x (T, D) -> (T, vocabulary), for models whose output matrix is the same. */
  asLinear: Linear;
};

/**
 * x (..., 1, in), experts (...) -> (..., 1, out): a matrix of its own for each row. `sorted` says that
 * equal experts stand together.
 */
export type Experts = (x: MlxArray, experts: MlxArray, sorted?: boolean) => MlxArray;

export type WeightOptions = {
  backend: Backend;
  /** Instead of the type that the device and the file suggest. */
  dtype?: FloatType | undefined;
  /** On CUDA: packed matrices are unpacked once, and not in each step with many rows. */
  keepUnpacked?: boolean | undefined;
  onProgress?: ((loadedBytes: number, totalBytes: number) => void) | undefined;
};

export class Weights {
  readonly dtype: FloatType;
  readonly #checkpoint: Checkpoint;
  /** Those of the checkpoint, and those arranged of them. */
  readonly #tensors: Map<string, StoredTensor>;
  readonly #options: WeightOptions;
  readonly #arrays: MlxArray[] = [];
  /** Transposed views of some of the arrays, and constants: nothing that counts as weights. */
  readonly #views: MlxArray[] = [];
  readonly #used = new Set<string>();
  readonly #totalBytes: number;
  #loadedBytes = 0;
  readonly #products: Products | undefined;

  constructor(checkpoint: Checkpoint, options: WeightOptions) {
    this.#checkpoint = checkpoint;
    this.#tensors = new Map(checkpoint.tensors);
    this.#options = options;
    this.dtype = options.dtype ?? computeType(checkpoint, options.backend);
    if (options.backend === "cuda") this.#products = new Products();
    this.#totalBytes = checkpoint.tensors.values().reduce((sum, { bytes }) => sum + bytes, 0);
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  /** A vector of a norm, a bias and the like. */
  tensor(name: string, shape: readonly number[]): MlxArray {
    const stored = this.#stored(name, shape);
    return this.#own(loadDense(stored, this.dtype, this.#options.backend), stored);
  }

  /** `name`.weight, and `name`.bias where the file has one. */
  linear(name: string, inputs: number, outputs: number): Linear {
    const matrix = this.#matrix(name, [outputs, inputs]);
    const bias = this.has(`${name}.bias`) ? this.tensor(`${name}.bias`, [outputs]) : undefined;
    return this.#linear(matrix, bias);
  }

  /**
   * Several matrices of one input as one: a single product is faster. Where the file keeps them in
   * different formats they stay apart, and what they give is put side by side.
   */
  joined(
    name: string,
    parts: readonly string[],
    inputs: number,
    outputs: readonly number[],
  ): Linear {
    const kinds = ["weight", "scales", "biases", "bias"].map((kind) =>
      parts.map((part) => this.#tensors.get(`${part}.${kind}`)),
    );
    const isAlike = kinds.every((stored) => {
      const [first] = stored;
      const tail = (tensor: StoredTensor | undefined) =>
        tensor && [tensor.format, ...tensor.shape.slice(1)].join();
      return stored.every((each) => tail(each) === tail(first));
    });
    if (!isAlike) {
      const apart = parts.map((part, i) => this.linear(part, inputs, outputs[i]!));
      return surrounded((x) =>
        concatenate(
          apart.map((each) => each(x)),
          -1,
        ),
      );
    }
    for (const [i, part] of parts.entries()) this.#check(part, inputs, outputs[i]!);
    for (const stored of kinds) {
      if (!stored[0]) continue;
      const kind = stored[0].name.split(".").at(-1)!;
      const names = stored.map((each) => each!.name);
      this.arrange(names, (tensors) => joined(`${name}.${kind}`, tensors));
    }
    return this.linear(
      name,
      inputs,
      outputs.reduce((a, b) => a + b),
    );
  }

  embedding(name: string, vocabulary: number, dims: number): Embedding {
    const matrix = this.#matrix(name, [vocabulary, dims]);
    return {
      lookup: (tokens) => lookup(matrix, tokens, this.dtype),
      asLinear: this.#linear(matrix),
    };
  }

  experts(name: string, count: number, inputs: number, outputs: number): Experts {
    const matrix = this.#matrix(name, [count, outputs, inputs]);
    const bias = this.has(`${name}.bias`)
      ? this.tensor(`${name}.bias`, [count, outputs])
      : undefined;
    return experts(matrix, bias, (view) => this.#keep(view));
  }

  /** Numbers of our own that live as long as the weights. */
  constant(values: Float32Array): MlxArray {
    using _ = new Scope();
    return this.#keep(array(values));
  }

  /** An array of our own making that lives as long as the weights. */
  computed(make: () => MlxArray): MlxArray {
    using _ = new Scope();
    const made = hold(make());
    this.#arrays.push(made);
    made.evaluate();
    return made;
  }

  /** Gives a tensor that the file holds in pieces, or in another order, the name and shape we ask for. */
  arrange(sources: readonly string[], arrange: (stored: StoredTensor[]) => StoredTensor): void {
    const arranged = arrange(sources.map((name) => this.#find(name)));
    this.#tensors.set(arranged.name, arranged);
    for (const name of sources) this.#used.add(name);
  }

  /** Throws where the file has tensors that the configuration does not account for. */
  finish(ignored: readonly RegExp[]): void {
    for (const name of this.#checkpoint.tensors.keys()) {
      if (this.#used.has(name) || ignored.some((pattern) => pattern.test(name))) continue;
      const { path } = this.#checkpoint;
      throw new LoadError(`${path}: the configuration has no place for tensor ${quoted(name)}`);
    }
  }

  /** How many bytes of arrays there are. */
  get bytes(): number {
    return this.#arrays.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  free(): void {
    this.#products?.free();
    for (const owned of [...this.#views.splice(0), ...this.#arrays.splice(0)]) owned.free();
  }

  #linear(matrix: Matrix, bias?: MlxArray): Linear {
    const { backend } = this.#options;
    if (backend === "cpu" && matrix.kind === "packed") {
      const { matrix: packed, quantization } = matrix;
      return atOnce((x, options) => packedProduct(x, packed, quantization, options), bias);
    }
    const unpacks = backend === "cuda" && this.dtype !== "float32";
    const plain =
      matrix.kind === "dense"
        ? denseLinear(this.#transposed(matrix.weight), bias)
        : packedLinear(matrix, bias, unpacks ? this.#unpacked(matrix) : undefined);
    const isQuicker = matrix.kind === "packed" || !bias;
    const products = this.#products;
    if (!products || !isQuicker || !fitsProduct(matrix, this.dtype)) return plain;
    const quick = atOnce((x, options) => products.product(x, matrix, options), bias);
    const isUnpacked = matrix.kind === "dense" || this.#options.keepUnpacked === true;
    return (x, around) => {
      const isOurs = x.ndim === 2 && isQuickest(x.shape[0]!, matrix.kind, isUnpacked);
      return (isOurs ? quick : plain)(x, around);
    };
  }

  /** (in, out), as a view. */
  #transposed(weight: MlxArray): () => MlxArray {
    const transposed = keepTransposed(weight, (view) => this.#keep(view));
    return () => transposed;
  }

  #unpacked({ matrix, quantization }: Packed): () => MlxArray {
    const unpack = () => dequantize(matrix, quantization, this.dtype);
    if (this.#options.keepUnpacked) return this.#transposed(this.computed(unpack));
    return () => swapAxes(unpack(), -1, -2);
  }

  /** Throws where a matrix is not what it should be, under its own name. */
  #check(name: string, inputs: number, outputs: number): void {
    if (!this.#packed(name, [outputs, inputs])) this.#stored(`${name}.weight`, [outputs, inputs]);
    if (this.has(`${name}.bias`)) this.#stored(`${name}.bias`, [outputs]);
  }

  #matrix(name: string, shape: readonly number[]): Matrix {
    const { backend } = this.#options;
    const packed = this.#packed(name, shape);
    if (!packed) {
      const stored = this.#stored(`${name}.weight`, shape);
      const affine =
        plainType(stored) || !this.#staysPacked(shape) ? undefined : this.#affine(stored);
      if (affine) return affine;
      const weight = this.#own(loadDense(stored, this.dtype, backend), stored);
      return { kind: "dense", weight };
    }
    const { weight, scales, biases, quantization } = packed;
    const parts = [weight, scales, ...(biases ? [biases] : [])];
    if (!this.#staysPacked(shape, quantization)) {
      const unpacked = loadUnpacked(packed, shape, this.dtype, backend);
      return { kind: "dense", weight: this.#own(unpacked, ...parts) };
    }
    // Scales of another type than x would turn the product into a third.
    const load = (part: StoredTensor) =>
      part === weight || quantization.mode !== "affine"
        ? loadPlain(part, backend)
        : loadDense(part, this.dtype, backend);
    const [w, s, b] = parts.map((part) => this.#own(load(part), part));
    return { kind: "packed", matrix: { weight: w!, scales: s!, biases: b }, quantization };
  }

  /** Whether there is a product for such a packed matrix; for each of GGUF's that is affine there is. */
  #staysPacked(shape: readonly number[], quantization?: Quantization): boolean {
    if (this.#options.backend !== "cpu") return true;
    const fits = !quantization || fitsPackedProduct(quantization);
    return runsOwn() && this.dtype === "float32" && shape.length === 2 && fits;
  }

  #affine(stored: StoredTensor): Matrix | undefined {
    const dtype = this.dtype === "float32" ? "float32" : "float16";
    const loaded = loadAffine(stored, dtype, this.#options.backend);
    if (!loaded) return undefined;
    const { weight, scales, biases } = loaded.matrix;
    this.#arrays.push(scales, biases!);
    this.#own(weight, stored);
    return { kind: "packed", ...loaded };
  }

  /** The three tensors of a matrix packed by MLX. Bits and group size follow from the shapes. */
  #packed(name: string, shape: readonly number[]): StoredQuantized | undefined {
    const tensors = this.#tensors;
    const [weight, scales] = [tensors.get(`${name}.weight`), tensors.get(`${name}.scales`)];
    if (!weight || !scales) return undefined;
    const columns = shape.at(-1)!;
    const bits = (weight.shape.at(-1)! * 32) / columns;
    const groupSize = columns / scales.shape.at(-1)!;
    const mode = modeOf(scales, bits, groupSize);
    const rows = (tensor: StoredTensor) => tensor.shape.slice(0, -1).join();
    const fits = [weight, scales].every((tensor) => rows(tensor) === shape.slice(0, -1).join());
    const biases = mode === "affine" ? this.#stored(`${name}.biases`, scales.shape) : undefined;
    const alike = !biases || biases.format === scales.format;
    if (!mode || !fits || !alike || weight.format !== "U32") {
      const found = `(${weight.shape}) of ${weight.format} with scales (${scales.shape})`;
      throw this.#disagreement(weight.name, shape, `${found} of ${scales.format}`);
    }
    return { weight, scales, biases, quantization: { mode, groupSize, bits } };
  }

  #stored(name: string, shape: readonly number[]): StoredTensor {
    const stored = this.#find(name);
    if (stored.shape.join() !== shape.join()) {
      throw this.#disagreement(name, shape, `(${stored.shape})`);
    }
    return stored;
  }

  #find(name: string): StoredTensor {
    const stored = this.#tensors.get(name);
    if (!stored) throw new LoadError(`${this.#checkpoint.path}: tensor ${name} is missing`);
    return stored;
  }

  #disagreement(name: string, shape: readonly number[], found: string): LoadError {
    const { path } = this.#checkpoint;
    return new LoadError(`${path}: ${name}: expected shape (${shape}), found ${found}`);
  }

  #own(made: MlxArray, ...sources: StoredTensor[]): MlxArray {
    this.#arrays.push(made);
    for (const { name, bytes } of sources) {
      this.#used.add(name);
      this.#loadedBytes += bytes;
    }
    this.#options.onProgress?.(this.#loadedBytes, this.#totalBytes);
    return made;
  }

  /** A view of an array that lives as long as the weights. */
  #keep(view: MlxArray): MlxArray {
    view.evaluate();
    this.#views.push(hold(view));
    return view;
  }
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

function computeType({ format, tensors, config }: Checkpoint, backend: Backend): FloatType {
  if (backend === "cpu") return "float32";
  if (format === "gguf") return "float16";
  const norm = tensors.get("model.norm.weight");
  const stored = [config.torch_dtype, config.dtype, norm && plainType(norm)];
  return stored.find(isFloatType) ?? "bfloat16";
}

function isFloatType(name: unknown): name is FloatType {
  return name === "float32" || name === "float16" || name === "bfloat16";
}

type Keep = (view: MlxArray) => MlxArray;

/** Rows that MLX multiplies with a packed matrix as it is sooner than that could be unpacked. */
const MOST_ROWS_PACKED = 2;

/** `unpacked` is (in, out). */
function packedLinear(
  { matrix, quantization }: Packed,
  bias: MlxArray | undefined,
  unpacked: (() => MlxArray) | undefined,
): Linear {
  const product = (x: MlxArray) => quantizedMatmul(x, matrix, quantization);
  const asItIs = surrounded(bias ? (x) => add(product(x), bias) : product);
  if (!unpacked) return asItIs;
  // With more rows MLX reads a matrix once a row, or compiles a kernel for a minute.
  const dense = denseLinear(unpacked, bias);
  return (x, around) => (x.size / x.shape.at(-1)! <= MOST_ROWS_PACKED ? asItIs : dense)(x, around);
}

function denseLinear(transposed: () => MlxArray, bias: MlxArray | undefined): Linear {
  if (bias) return surrounded((x) => addmm(bias, x, transposed()));
  const plain = surrounded((x) => matmul(x, transposed()));
  return (x, around = {}) => {
    const { norm, gating, residual } = around;
    // One row is a vector: for its product MLX has a quick kernel on GPUs, but none that adds.
    if (!residual || gating || x.shape[0] === 1) return plain(x, around);
    return addmm(residual, norm ? norm(x) : x, transposed());
  };
}

/** A product with what is around it, one after the other. */
function surrounded(product: (x: MlxArray) => MlxArray): Linear {
  return (x, { norm, gating, residual } = {}) => {
    const made = product(norm ? norm(x) : x);
    const [gate, up] = gating ? split(made, 2) : [];
    const gated = gating ? gating(gate!, up!) : made;
    return residual ? add(residual, gated) : gated;
  };
}

/** The same by a product that does it all at once. What it does not know comes after it. */
function atOnce(
  product: (x: MlxArray, options: ProductOptions) => MlxArray,
  bias: MlxArray | undefined,
): Linear {
  return (x, { norm, gating, residual } = {}) => {
    if (!bias && (!gating || gating === swiglu)) {
      return product(x, { norm, isGated: gating !== undefined, residual });
    }
    const made = product(x, { norm });
    return surrounded(() => (bias ? add(made, bias) : made))(x, { gating, residual });
  };
}

function experts(matrix: Matrix, bias: MlxArray | undefined, keep: Keep): Experts {
  const product: Experts =
    matrix.kind === "packed"
      ? (x, chosen, sorted = false) =>
          gatherQmm(x, matrix.matrix, { rhs: chosen, sorted }, matrix.quantization)
      : gatherDense(keepTransposed(matrix.weight, keep));
  if (!bias) return product;
  return (x, chosen, sorted) => add(product(x, chosen, sorted), expandDims(take(bias, chosen), -2));
}

function gatherDense(transposed: MlxArray): Experts {
  return (x, chosen, sorted = false) => gatherMm(x, transposed, { rhs: chosen, sorted });
}

function keepTransposed(weight: MlxArray, keep: Keep): MlxArray {
  using _ = new Scope();
  return keep(swapAxes(weight, -1, -2));
}

function lookup(matrix: Matrix, tokens: MlxArray, dtype: FloatType): MlxArray {
  if (matrix.kind === "dense") return take(matrix.weight, tokens);
  const { weight, scales, biases } = matrix.matrix;
  const rows = {
    weight: take(weight, tokens),
    scales: take(scales, tokens),
    biases: biases && take(biases, tokens),
  };
  return dequantize(rows, matrix.quantization, dtype);
}
