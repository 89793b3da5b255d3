// Makes the linear layers and vectors that models ask for by name. The parts of this object do the work: `stored` and
// `matrices` rename and rearrange tensors, `ranks` divides them, `arrays` loads and owns arrays.
import type {
  Compute,
  ExpertLinear,
  ExpertProduct,
  FloatType,
  HeadLinear,
  Linear,
  Memory,
} from "../../device/device.ts";
import { gateHalves, reordered, unfused } from "../../device/linear.ts";
import type { Matrix } from "../../kernels/product/matrix.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import { add, concatenate } from "../../mlx/ops.ts";
import type { Checkpoint } from "../checkpoint/checkpoint.ts";
import { joined, joinedExperts } from "../checkpoint/stored/arrangement.ts";
import { countOf, type Extent, type Extents, partsOf, sumOf, wholeOf } from "./extents.ts";
import { RankParts } from "./rank-parts.ts";
import { evenly, type LayerSplit, type Parallel, rankStage, type Stage } from "./stages.ts";
import { StoredMatrices } from "./stored-matrices.ts";
import { type OnProgress, StoredTensors } from "./stored-tensors.ts";
import { plainType } from "./tensors.ts";
import { WeightArrays } from "./weight-arrays.ts";

export type Embedding = {
  /** Looks up embeddings: tokens (T) -> (T, D) */
  lookup(tokens: MlxArray): MlxArray;
  /** Linear layer x (T, D) -> (T, vocabulary), for models whose output matrix is the embedding. */
  readonly asLinear: Linear;
};

export type WeightOptions = {
  device: Compute & Memory;
  /** Type to compute in, in place of the one that the device and the file suggest. */
  dtype?: FloatType | undefined;
  /** Whether to keep matrices dequantized too (CUDA), instead of dequantizing in each step with many rows. */
  keepDequantized?: boolean | undefined;
  /** Ranks that the weights are divided among. */
  group?: Group | undefined;
  parallel?: Parallel | undefined;
  /** Layers of each rank, if `parallel` is "pipeline"; evenly divided by default. */
  layers?: LayerSplit | undefined;
  /** Attention windows of the layers of all ranks, if `parallel` is "pipeline". */
  windows?: readonly (number | undefined)[] | undefined;
  onProgress?: OnProgress | undefined;
};

export class Weights {
  readonly device: Compute;
  readonly dtype: FloatType;
  readonly stored: StoredTensors;
  readonly matrices: StoredMatrices;
  readonly arrays: WeightArrays;
  readonly ranks: RankParts;
  /** This rank's layers, with pipeline parallelism. */
  readonly stage: Stage | undefined;
  readonly windows: readonly (number | undefined)[];
  readonly #keepDequantized: boolean;

  constructor(checkpoint: Checkpoint, options: WeightOptions) {
    const { device, dtype, keepDequantized = false, group, parallel, onProgress } = options;
    const { windows = [], layers = evenly(group?.size ?? 1) } = options;
    const isPipeline = parallel === "pipeline";
    this.device = device;
    this.dtype = dtype ?? device.computeType(storedType(checkpoint));
    this.stored = new StoredTensors(checkpoint, onProgress);
    this.matrices = new StoredMatrices(this.stored);
    this.arrays = new WeightArrays(device, this.dtype, this.stored, this.matrices);
    this.ranks = new RankParts(isPipeline ? undefined : group, this.stored, this.matrices);
    if (group && isPipeline) this.stage = rankStage(group, this.dtype, layers);
    this.windows = windows;
    this.#keepDequantized = keepDequantized;
  }

  /** Loads this rank's part of a tensor along its first axis, whatever axes the file has. */
  part(name: string, own: Extents, rest: readonly number[] = [], dtype = this.dtype): MlxArray {
    return this.arrays.tensor(name, this.ranks.cut(name, partsOf(own), rest), dtype);
  }

  /**
   * Makes a linear layer of `name`.weight, and of `name`.bias if the file has one. The matrix may stack the rows of
   * several outputs. If the inputs are divided among ranks, the ranks' partial results are summed.
   */
  linear(name: string, inputs: Extent, outputs: Extents): Linear {
    const parts = partsOf(outputs);
    const size = sumOf(parts.map(countOf));
    this.ranks.cutMatrix(name, [], parts, [inputs]);
    const matrix = this.arrays.matrix(name, [size, countOf(inputs)]);
    const product = this.#linear(matrix, this.#bias(name, [size], inputs));
    const order = this.stored.get(`${name}.input_order`);
    const ordered = order ? reordered(product, this.arrays.plain(order)) : product;
    const total = this.ranks.totals(inputs);
    if (!total) return ordered;
    // All ranks add the residual after the sum, so that they build the same graph and issue collectives in order.
    return (x, { residual, ...fused } = {}) => {
      const whole = total(ordered(x, fused));
      return residual ? add(residual, whole) : whole;
    };
  }

  /**
   * Makes one linear layer of several matrices with the same input, because that is faster. If their formats differ,
   * each matrix is multiplied separately, and the outputs are concatenated.
   */
  joined(
    name: string,
    parts: readonly string[],
    inputs: number,
    outputs: readonly Extents[],
  ): Linear {
    if (!this.matrices.areAlike(parts)) {
      const apart = parts.map((part, i) => this.linear(part, inputs, outputs[i]!));
      const products = (x: MlxArray) => apart.map((each) => each(x));
      return unfused((x) => concatenate(products(x), -1), this.device.gate);
    }
    for (const [i, part] of parts.entries()) {
      const own = partsOf(outputs[i]!);
      this.matrices.check(part, [sumOf(own.map(wholeOf)), inputs]);
      this.ranks.cutMatrix(part, [], own, [inputs]);
    }
    this.matrices.join(name, parts, joined);
    return this.linear(name, inputs, sumOf(outputs.flatMap(partsOf).map(countOf)));
  }

  embedding(name: string, vocabulary: number, dims: number): Embedding {
    const own = this.ranks.vocabulary(vocabulary);
    this.ranks.cutMatrix(name, [], [own], [dims]);
    const matrix = this.arrays.matrix(name, [countOf(own), dims]);
    const lookup = (tokens: MlxArray) => this.device.lookup(matrix, tokens, this.dtype);
    // Makes the linear layer on demand, because devices may keep a copy of a matrix that they multiply by.
    const asLinear = () => this.ranks.logits(this.#linear(matrix, undefined), own);
    return {
      lookup: this.ranks.lookup(lookup, own),
      get asLinear() {
        return asLinear();
      },
    };
  }

  /** Makes the product with the output matrix: x (T, D) -> (T, vocabulary) */
  head(name: string, dims: number, vocabulary: number): Linear {
    const own = this.ranks.vocabulary(vocabulary);
    return this.ranks.logits(this.linear(name, dims, own), own);
  }

  /** Makes a linear layer per expert. With divided inputs it returns partial results for `ranks.totals` to sum. */
  experts(name: string, count: number, inputs: Extent, outputs: Extent): ExpertLinear {
    this.ranks.cutMatrix(name, [count], [outputs], [inputs]);
    const dtype = this.device.expertType(this.dtype);
    const matrix = this.arrays.matrix(name, [count, countOf(outputs), countOf(inputs)], dtype);
    const bias = this.#bias(name, [count, countOf(outputs)], inputs, dtype);
    return this.device.experts(matrix, bias, (view) => this.arrays.keep(view));
  }

  /** Like `joined`, for experts: joins several matrices of the same shape into one linear layer per expert. */
  joinedExperts(
    name: string,
    parts: readonly string[],
    count: number,
    inputs: number,
    outputs: Extent,
  ): ExpertLinear {
    if (!this.matrices.areAlike(parts)) {
      const apart = parts.map((part) => this.experts(part, count, inputs, outputs));
      const product: ExpertProduct = (x, experts, { gating, sorted = false } = {}) => {
        const made = apart.map((each) => each(x, experts, { sorted }));
        const whole = concatenate(made, -1); // (R, parts * outputs)
        return gating ? gateHalves(whole, gating, this.device.gate) : whole;
      };
      return Object.assign(product, { sortedRows: apart[0]!.sortedRows });
    }
    for (const part of parts) {
      this.matrices.check(part, [count, wholeOf(outputs), inputs]);
      this.ranks.cutMatrix(part, [count], [outputs], [inputs]);
    }
    this.matrices.join(name, parts, joinedExperts);
    return this.experts(name, count, inputs, parts.length * countOf(outputs));
  }

  /**
   * Makes one linear layer per head from matrices (heads, outputs, inputs), or transposed ones. The matrices are
   * small, so they are dequantized: not every device has a fast batched product with quantized matrices.
   */
  byHead(
    name: string,
    heads: Extent,
    inputs: number,
    outputs: number,
    { isTransposed = false } = {},
  ): HeadLinear {
    const each = isTransposed ? [inputs, outputs] : [outputs, inputs];
    this.ranks.cutMatrix(name, [], [heads], each);
    const weight = this.arrays.dense(name, [countOf(heads), ...each]);
    return this.device.headLinear(weight, isTransposed, (view) => this.arrays.keep(view));
  }

  #linear(matrix: Matrix, bias: MlxArray | undefined): Linear {
    const linear = this.device.linear(matrix, {
      dtype: this.dtype,
      bias,
      keepDequantized: this.#keepDequantized,
      keepView: (view) => this.arrays.keep(view),
      keepWeight: (make) => this.arrays.computed(make),
    });
    return matrix.kind === "dense" && !bias
      ? Object.assign(linear, { dense: matrix.weight })
      : linear;
  }

  /** Loads a bias. If the inputs are divided, only the first rank has it, so that it is added once. */
  #bias(name: string, shape: readonly number[], inputs: Extent, dtype = this.dtype) {
    const bias = `${name}.bias`;
    if (!this.stored.has(bias)) return undefined;
    if (typeof inputs === "number" || this.ranks.group?.rank === 0) {
      return this.arrays.tensor(bias, shape, dtype);
    }
    this.stored.skip(bias);
    return undefined;
  }
}

/** Returns the type that the files suggest: the stored float type, float16 for GGUF, bfloat16 if unknown. */
function storedType({ format, tensors, config }: Checkpoint): FloatType {
  if (format === "gguf") return "float16";
  const norm = tensors.get("model.norm.weight");
  const stored = [config.torch_dtype, config.dtype, norm && plainType(norm)];
  return stored.find(isFloatType) ?? "bfloat16";
}

function isFloatType(name: unknown): name is FloatType {
  return name === "float32" || name === "float16" || name === "bfloat16";
}
