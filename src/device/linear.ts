// Products of rows with a weight matrix: the implementations that devices choose from.
import { columnsOf } from "../kernels/attention/latent-attention.ts";
import type { Dense, Matrix, Packed } from "../kernels/product/matrix.ts";
import type { MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import {
  add,
  addmm,
  dequantize,
  expandDims,
  gatherMm,
  gatherQmm,
  matmul,
  type QuantizedMatrix,
  quantizedMatmul,
  reshape,
  split,
  swapAxes,
  take,
} from "../mlx/ops.ts";
import { Scope } from "../mlx/scope.ts";
import type { Compute, ExpertProduct, Fused, Gating, Linear, LinearOptions } from "./device.ts";

/** Embedding lookup with MLX's operations. */
export const lookup: Compute["lookup"] = (matrix, tokens, dtype) => {
  if (matrix.kind === "dense") return take(matrix.weight, tokens);
  const { weight, scales, biases } = matrix.matrix;
  const rows = {
    weight: take(weight, tokens),
    scales: take(scales, tokens),
    biases: biases && take(biases, tokens),
  };
  return dequantize(rows, matrix.quantization, dtype);
};

/** Rearranges a quantized matrix for the device's products, possibly in place. */
export function packedFor(
  { packedRows }: Compute,
  { weight, scales, biases }: QuantizedMatrix,
): QuantizedMatrix {
  return {
    weight: packedRows(weight),
    scales: packedRows(scales),
    biases: biases && packedRows(biases),
  };
}

/** Combines gate and up projections. `halves` takes both in one array, and returns undefined if unsupported. */
export type Gate = Compute["gate"] & {
  halves?(gating: Gating, halves: MlxArray): MlxArray | undefined;
};

/** Combines the halves of the last axis: gate projection first, up projection second. */
export function gateHalves(halves: MlxArray, gating: Gating, gate: Gate): MlxArray {
  const made = gate.halves?.(gating, halves);
  if (made) return made;
  const [gates, ups] = split(halves, 2);
  return gate(gating, gates!, ups!);
}

/** Makes a layer that computes norm, product, gate and residual add as separate operations. */
export function unfused(product: (x: MlxArray) => MlxArray, gate: Gate): Linear {
  return (x, { norm, gating, residual } = {}) => {
    const made = product(norm ? norm(x) : x);
    const gated = gating ? gateHalves(made, gating, gate) : made;
    return residual ? add(residual, gated) : gated;
  };
}

/** Makes a layer from a product whose matrix has permuted input columns: permutes the input by `order`. */
export function reordered(product: Linear, order: MlxArray): Linear {
  return (x, { norm, ...fusing } = {}) => product(take(norm ? norm(x) : x, order, -1), fusing);
}

/** Returns the operations to fuse: all of them, or only the norm if there is a bias or the gate is not SwiGLU. */
export function fusedOptions(
  { norm, gating, residual }: Fused,
  bias: MlxArray | undefined,
): ProductOptions {
  if (bias || (gating && gating !== "swiglu")) return { norm };
  return { norm, isGated: gating !== undefined, residual };
}

/** Makes a layer that fuses the operations of fusedOptions, and computes the others after the product. */
export function fused(
  product: (x: MlxArray, options: ProductOptions) => MlxArray,
  bias: MlxArray | undefined,
  gate: Gate,
): Linear {
  return (x, fusing = {}) => {
    const options = fusedOptions(fusing, bias);
    const made = product(x, options);
    if (options.isGated !== undefined) return made;
    return unfused(() => (bias ? add(made, bias) : made), gate)(x, { ...fusing, norm: undefined });
  };
}

/** Makes a dense layer; `transposed` returns the matrix as (in, out). */
export function denseLinear(
  transposed: () => MlxArray,
  bias: MlxArray | undefined,
  gate: Gate,
): Linear {
  if (bias) return unfused((x) => addmm(bias, x, transposed()), gate);
  const plain = unfused((x) => matmul(x, transposed()), gate);
  return (x, fusing = {}) => {
    const { norm, gating, residual } = fusing;
    // For a single row MLX's GPU kernel (GEMV) is faster, but has no variant that adds the residual.
    if (!residual || gating || x.shape[0] === 1) return plain(x, fusing);
    return addmm(residual, norm ? norm(x) : x, transposed());
  };
}

/** Makes a layer with a dense matrix (out, in), as in the checkpoint. */
export function weightLinear(weight: MlxArray, options: LinearOptions, gate: Gate): Linear {
  return denseLinear(keepTransposed(weight, options), options.bias, gate);
}

export function quantizedLinear(
  { matrix, quantization }: Packed,
  bias: MlxArray | undefined,
  gate: Gate,
): Linear {
  const product = (x: MlxArray) => quantizedMatmul(x, matrix, quantization);
  return unfused(bias ? (x) => add(product(x), bias) : product, gate);
}

/** Returns the matrix as (in, out), a view that lives as long as the weights. */
function keepTransposed(
  weight: MlxArray,
  { keepView }: Pick<LinearOptions, "keepView">,
): () => MlxArray {
  using _ = new Scope();
  const view = keepView(swapAxes(weight, -1, -2));
  return () => view;
}

/** Implements headLinear with MLX's operations. */
export const headLinear: Compute["headLinear"] = (weight, isTransposed, keepView) => {
  const matrices = isTransposed ? () => weight : keepTransposed(weight, { keepView }); // (heads, in, out)
  return (x) => {
    const [heads, inputs, outputs] = matrices().shape as [number, number, number];
    const byHead = swapAxes(columnsOf(x, heads, inputs), 0, 1); // (heads, T, in)
    return reshape(swapAxes(matmul(byHead, matrices()), 0, 1), [-1, heads * outputs]);
  };
};

/** Implements products with experts by MLX's operations. */
export function expertLinear(
  matrix: Matrix,
  bias: MlxArray | undefined,
  keepView: LinearOptions["keepView"],
  gate: Gate,
): ExpertProduct {
  const product =
    matrix.kind === "packed" ? gatherQuantized(matrix) : gatherDense(matrix, keepView);
  return (x, experts, { gating, sorted = false } = {}) => {
    const chosen = reshape(experts, [x.shape[0]!, -1]); // (N, R / N)
    const products = product(expandDims(x, [1, 2]), chosen, sorted); // (N, R / N, 1, out)
    const made = bias ? add(products, expandDims(take(bias, chosen), -2)) : products;
    const gated = gating ? gateHalves(made, gating, gate) : made;
    return reshape(gated, [experts.size, -1]);
  };
}

type Gather = (x: MlxArray, chosen: MlxArray, sorted: boolean) => MlxArray;

function gatherQuantized({ matrix, quantization }: Packed): Gather {
  return (x, chosen, sorted) => gatherQmm(x, matrix, { rhs: chosen, sorted }, quantization);
}

function gatherDense({ weight }: Dense, keepView: LinearOptions["keepView"]): Gather {
  const transposed = keepTransposed(weight, { keepView });
  return (x, chosen, sorted) => gatherMm(x, transposed(), { rhs: chosen, sorted });
}
