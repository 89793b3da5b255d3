// A matrix of weights, as products take it.
import type { MlxArray } from "../../mlx/array.ts";
import type { Quantization, QuantizedMatrix } from "../../mlx/ops.ts";

/** (..., N, K), dense, or quantized and packed by MLX. */
export type Matrix = Dense | Packed;
export type Dense = { kind: "dense"; weight: MlxArray };
export type Packed = { kind: "packed"; matrix: QuantizedMatrix; quantization: Quantization };
