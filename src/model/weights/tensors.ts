// Converts stored tensors to MLX arrays, piece by piece and directly into the array's memory, so that loading takes
// little more memory than the arrays themselves. The caller owns the arrays.
import type { Compute, FloatType, Memory } from "../../device/device.ts";
import type { GgufType } from "../../files/gguf.ts";
import { dequantize } from "../../files/gguf-quants.ts";
import { isRepacked, mlxLayoutOf, type Repacked, repack } from "../../files/gguf-repack.ts";
import { LoadError } from "../../files/load-error.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import { bytesOf, type Dtype, type HostArray, hostArrays, toBfloat16 } from "../../mlx/dtype.ts";
import {
  astype,
  dequantize as dequantizeMlx,
  type Quantization,
  type QuantizedMatrix,
  zeros,
} from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";

/** A matrix in one of MLX's quantized formats. */
export type StoredQuantized = {
  weight: StoredTensor;
  scales: StoredTensor;
  biases: StoredTensor | undefined;
  quantization: Required<Quantization>;
};

/** Maximum bytes converted at a time. */
const PIECE_BYTES = 2 ** 20;

/** Maximum bytes read at a time without conversion. */
const READ_BYTES = 2 ** 23;

const plainTypes: Partial<Record<StoredTensor["format"], Dtype>> = {
  F32: "float32",
  F16: "float16",
  BF16: "bfloat16",
  U8: "uint8",
  U32: "uint32",
};

/** Returns the type of elements that are stored plainly; undefined for quantized tensors. */
export function plainType(stored: StoredTensor): Dtype | undefined {
  return plainTypes[stored.format];
}

/** Loads a tensor, converted or dequantized to this type. */
export function loadDense(stored: StoredTensor, dtype: FloatType, device: Memory): MlxArray {
  return make(stored.shape, dtype, device, (target) => {
    if (plainType(stored) === dtype && !stored.rowOrder) readInto(stored, target);
    else decode(stored, (piece, at) => put(piece, target, at));
  });
}

/** Loads a tensor without conversion. */
export function loadPlain(stored: StoredTensor, device: Memory): MlxArray {
  const dtype = plainType(stored);
  if (!dtype) throw new LoadError(`${stored.name}: expected plain numbers, found ${stored.format}`);
  return make(stored.shape, dtype, device, (target) => readInto(stored, target));
}

/** Loads a matrix dequantized, piece by piece, for devices that cannot multiply by its format. */
export function loadDequantized(
  { weight, scales, biases, quantization }: StoredQuantized,
  shape: readonly number[],
  dtype: FloatType,
  device: Memory,
): MlxArray {
  const columns = shape.at(-1)!;
  const rows = shape.reduce((a, b) => a * b) / columns;
  const step = Math.max(1, Math.floor(PIECE_BYTES / (columns * 4)));
  return make(shape, dtype, device, (target) => {
    for (let row = 0; row < rows; row += step) {
      using _ = new Scope();
      const count = Math.min(step, rows - row);
      const part = (stored: StoredTensor) => loadRows(stored, rows, row, count);
      // Dequantizes in float32, because MLX would round each weight to the type of the scales.
      const exact = (stored: StoredTensor) => astype(part(stored), "float32");
      const matrix = {
        weight: part(weight),
        scales: biases ? exact(scales) : part(scales),
        biases: biases && exact(biases),
      };
      const piece = dequantizeMlx(matrix, quantization, "float32").memory();
      put(new Float32Array(piece), target, row * columns);
    }
  });
}

/** Rearranges some rows of a quantized matrix for the device's kernels. Frees the given array. */
export function packed(rows: MlxArray, device: Compute & Memory): MlxArray {
  using _ = new Scope();
  const made = device.packedRows(rows);
  if (made === rows) return rows;
  if (!device.isSketch) made.evaluate();
  rows.free();
  return hold(made);
}

/**
 * Loads a GGUF matrix in one of MLX's quantized formats; undefined if none fits. `dtype` is the type of the scales,
 * which must represent all scales for the matrix to be exact.
 */
export function loadRepacked(
  stored: StoredTensor,
  dtype: "float16" | "float32",
  device: Compute & Memory,
): { matrix: QuantizedMatrix; quantization: Quantization; isExact: boolean } | undefined {
  const { format: type, shape } = stored;
  if (!isRepacked(type)) return undefined;
  const layout = mlxLayoutOf(type);
  const columns = shape.at(-1)!;
  const groupsPerRow = columns / layout.groupSize;
  const wordsPerRow = (columns * layout.bits) / 32;
  const groups = [...shape.slice(0, -1), groupsPerRow];
  const isAffine = layout.mode === "affine";
  using _ = new Scope();
  const weight = prepare([...shape.slice(0, -1), wordsPerRow], "uint32", device);
  const scales = prepare(groups, isAffine ? dtype : "uint8", device);
  const biases = isAffine ? prepare(groups, dtype, device) : undefined;
  let isExact = true;
  const fill = (bytes: Uint8Array, row: number, count: number) => {
    const part = ({ target }: Prepared, perRow: number) =>
      target.subarray(row * perRow, (row + count) * perRow);
    const parts = {
      weight: part(weight, wordsPerRow),
      scales: part(scales, groupsPerRow),
      biases: biases && part(biases, groupsPerRow),
    } as Repacked;
    repack(type, bytes, parts);
    if (parts.biases?.includes(-Infinity) || parts.biases?.includes(Infinity)) isExact = false;
  };
  if (!device.isSketch) forRows(stored, fill);
  const part = ({ finish }: Prepared) => packed(finish(), device);
  const matrix = { weight: part(weight), scales: part(scales), biases: biases && part(biases) };
  return { matrix, quantization: layout, isExact };
}

function make(
  shape: readonly number[],
  dtype: Dtype,
  device: Memory,
  write: (target: HostArray) => void,
): MlxArray {
  using _ = new Scope();
  const { target, finish } = prepare(shape, dtype, device);
  if (!device.isSketch) write(target);
  return finish();
}

type Prepared = { target: HostArray; finish(): MlxArray };

/** Prepares an array to be filled, in MLX's own memory if the host can write to that. Call it in a scope. */
function prepare(shape: readonly number[], dtype: Dtype, device: Memory): Prepared {
  if (device.isSketch) {
    // Takes no memory, because it is never evaluated.
    return { target: new hostArrays[dtype](0), finish: () => hold(zeros(shape, dtype)) };
  }
  if (device.hasHostMemory) {
    const made = device.allocate(shape, dtype);
    return { target: new hostArrays[dtype](made.memory()), finish: () => hold(made) };
  }
  const target = new hostArrays[dtype](shape.reduce((a, b) => a * b, 1));
  const finish = () => {
    const made = array(target, shape, dtype);
    made.evaluate();
    return hold(made);
  };
  return { target, finish };
}

function readInto(stored: StoredTensor, target: HostArray): void {
  const bytes = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
  for (let at = 0; at < bytes.length; at += READ_BYTES) {
    stored.read(at, bytes.subarray(at, at + READ_BYTES));
  }
}

// Buffers that are reused for every piece, because uncollected garbage also takes memory.
let pieceBytes = new Uint8Array(0);
let pieceNumbers = new Float32Array(0);

/** Calls `use` with the bytes of several rows at a time, or of one row if rows are stored in another order. */
function forRows(
  stored: StoredTensor,
  use: (bytes: Uint8Array, row: number, count: number) => void,
): void {
  const { shape, bytes, rowOrder } = stored;
  const rows = shape.reduce((a, b) => a * b, 1) / (shape.at(-1) ?? 1);
  const rowBytes = bytes / rows;
  const step = Math.min(rows, Math.max(1, Math.floor(PIECE_BYTES / rowBytes)));
  if (pieceBytes.length < step * rowBytes) pieceBytes = new Uint8Array(step * rowBytes);
  for (let row = 0; row < rows; row += step) {
    const count = Math.min(step, rows - row);
    const piece = pieceBytes.subarray(0, count * rowBytes);
    stored.read(row * rowBytes, piece);
    if (!rowOrder) use(piece, row, count);
    for (let i = 0; rowOrder && i < count; i++) {
      use(piece.subarray(i * rowBytes, (i + 1) * rowBytes), rowOrder(row + i), 1);
    }
  }
}

/** Calls `use` with the dequantized elements of each piece and the index of the piece's first element. */
function decode(stored: StoredTensor, use: (piece: Float32Array, at: number) => void): void {
  const { name, shape, rowOrder } = stored;
  if (rowOrder && shape.length === 1) {
    // Each element of a vector counts as a row in `rowOrder`.
    decode({ ...stored, rowOrder: undefined }, (piece, at) => {
      for (let i = 0; i < piece.length; i++) use(piece.subarray(i, i + 1), rowOrder(at + i));
    });
    return;
  }
  const columns = shape.at(-1) ?? 1;
  forRows(stored, (bytes, row, count) => {
    const size = count * columns;
    if (pieceNumbers.length < size) pieceNumbers = new Float32Array(size);
    const numbers = pieceNumbers.subarray(0, size);
    try {
      dequantize(stored.format as GgufType, bytes, numbers);
    } catch (error) {
      throw error instanceof LoadError ? new LoadError(`${name}: ${error.message}`) : error;
    }
    use(numbers, row * columns);
  });
}

function put(piece: Float32Array, target: HostArray, at: number): void {
  if (target instanceof Uint16Array) toBfloat16(piece, target.subarray(at, at + piece.length));
  else (target as Float32Array).set(piece, at);
}

/** Loads some rows of a plainly stored tensor. */
function loadRows(stored: StoredTensor, rows: number, from: number, count: number): MlxArray {
  const dtype = plainType(stored);
  if (!dtype) throw new LoadError(`${stored.name}: expected plain numbers, found ${stored.format}`);
  const size = (count * stored.bytes) / rows;
  if (pieceBytes.length < size) pieceBytes = new Uint8Array(size);
  const bytes = pieceBytes.subarray(0, size);
  stored.read((from * stored.bytes) / rows, bytes);
  const numbers = new hostArrays[dtype](bytes.buffer, 0, size / bytesOf(dtype));
  return array(numbers, [count, numbers.length / count], dtype);
}
