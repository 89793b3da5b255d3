// A matrix of weights, and how kernels read it.
import type { MlxArray } from "../../mlx/array.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import type { Quantization, QuantizationMode, QuantizedMatrix } from "../../mlx/ops.ts";

/** A weight matrix (..., N, K): dense, or quantized and packed by MLX. */
export type Matrix = Dense | Packed;
export type Dense = { kind: "dense"; weight: MlxArray };
export type Packed = { kind: "packed"; matrix: QuantizedMatrix; quantization: Quantization };

/** The bits per weight that kernels dequantize (quantized.h), by quantization mode. */
const decodedBits: Partial<Record<QuantizationMode, readonly number[]>> = { affine: [4, 8] };

/** A matrix (N, K), or one per expert (E, N, K). */
export type Form = {
  weight: MlxArray;
  /** Quantization scales; undefined if the matrix is dense. */
  scales: MlxArray | undefined;
  biases: MlxArray | undefined;
  /** Element type of a dense matrix, or of the scales of a quantized one. */
  numbers: Dtype;
  /** Bits per weight; 16 if dense. */
  bits: number;
  /** Weights that share a scale; 1 if dense. */
  span: number;
  /** Number of experts; 1 without experts. */
  experts: number;
  outputs: number;
  inputs: number;
  /** Whether kernels can read the matrix's format. */
  isDecoded: boolean;
};

export function formOf(matrix: Matrix): Form {
  const isDense = matrix.kind === "dense";
  const { weight, scales, biases } = isDense ? { weight: matrix.weight } : matrix.matrix;
  const { mode, bits = 4, groupSize = 64 } = isDense ? { bits: 16 } : matrix.quantization;
  const [columns, outputs, experts = 1] = weight.shape.toReversed() as [number, number, number?];
  return {
    ...{ weight, scales, biases, bits, experts, outputs },
    numbers: (scales ?? weight).dtype,
    span: isDense ? 1 : groupSize,
    inputs: isDense ? columns : (columns * 32) / bits,
    isDecoded: isDense || (mode !== undefined && !!decodedBits[mode]?.includes(bits)),
  };
}

/** Whether K consists of whole steps of 64 bytes, N is a multiple of `columns`, and offsets fit in 32 bits. */
export function isWhole(form: Form, columns: number): boolean {
  const { weight, bits, experts, outputs, inputs } = form;
  const isInRange = weight.bytes / experts < 2 ** 32;
  return inputs % (512 / bits) === 0 && outputs % columns === 0 && isInRange;
}
