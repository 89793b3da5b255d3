// Converts 4- and 8-bit floats with a scale per block. MLX has layouts only for the MX formats, so other formats are
// dequantized at load.
import { LoadError } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { computedNumbers, readNumbers, Scratch } from "./computed.ts";

/** Values of 8-bit floats, by bit pattern. e4m3 has 4 bits of exponent, 3 of mantissa, and no infinity. */
const e4m3 = Float32Array.from({ length: 256 }, (_, byte) => {
  const sign = byte & 0x80 ? -1 : 1;
  const [exponent, fraction] = [(byte >> 3) & 15, byte & 7];
  if (exponent === 15 && fraction === 7) return Number.NaN;
  if (exponent === 0) return sign * fraction * 2 ** -9;
  return sign * (1 + fraction / 8) * 2 ** (exponent - 7);
});

/** e5m2 is the upper byte of a float16. */
const e5m2 = Float32Array.from(
  new Float16Array(Uint16Array.from({ length: 256 }, (_, byte) => byte << 8).buffer),
);

/** e8m0 is a power of two: an exponent without mantissa. */
const e8m0 = Float32Array.from({ length: 256 }, (_, byte) =>
  byte === 255 ? Number.NaN : 2 ** (byte - 127),
);

const e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

export const byteFloats = new Map<StoredTensor["format"], Float32Array>([
  ["F8_E4M3", e4m3],
  ["F8_E5M2", e5m2],
]);

const scaleFloats = new Map<StoredTensor["format"], Float32Array>([
  ...byteFloats,
  ["F8_E8M0", e8m0],
  ["U8", e8m0],
]);

const scaleBytes = new Scratch();

/** Reads scales as float32; they may be 8-bit floats. */
function readScales(stored: StoredTensor, first: number, target: Float32Array): void {
  const values = scaleFloats.get(stored.format);
  if (!values) {
    readNumbers(stored, first, target, scaleBytes);
    return;
  }
  const bytes = scaleBytes.bytes(target.length);
  stored.read(first, bytes);
  for (let i = 0; i < bytes.length; i++) target[i] = values[bytes[i]!]!;
}

/** Rows and columns that share one scale. */
export type Block = readonly [rows: number, columns: number];

type Grid = { block: Block; perRow: number; perMatrix: number };

/** Finds which weights of matrices (..., rows, columns) share a scale: all, a row's, or a block's. */
function gridOf(weight: StoredTensor, scale: StoredTensor, known: Block | undefined): Grid {
  const [rows, columns] = weight.shape.slice(-2) as [number, number];
  const count = scale.shape.reduce((a, b) => a * b, 1);
  if (count === 1) return { block: [rows, columns], perRow: 1, perMatrix: 0 };
  const shape = scale.shape.length === 1 ? [...scale.shape, 1] : scale.shape;
  const [down, across] = shape.slice(-2) as [number, number];
  const side = (size: number, scales: number, usual: number | undefined) =>
    usual && Math.ceil(size / usual) === scales ? usual : size / scales;
  const block = [side(rows, down, known?.[0]), side(columns, across, known?.[1])] as const;
  const isAlike = shape.slice(0, -2).join() === weight.shape.slice(0, -2).join();
  const isForRows = scale.shape.length > 1 || down === rows;
  if (!isAlike || !isForRows || !block.every(Number.isInteger)) {
    throw new LoadError(`${scale.name}: (${scale.shape}) scales do not fit (${weight.shape})`);
  }
  return { block, perRow: across, perMatrix: down * across };
}

const weightBytes = new Scratch();
const rowScales = new Scratch();

/** Dequantizes 8-bit weights to float32. */
export function scaledFloats(
  weight: StoredTensor,
  scale: StoredTensor,
  block: Block | undefined,
): StoredTensor {
  const values = byteFloats.get(weight.format);
  if (!values || weight.shape.length < 2) {
    throw new LoadError(`${weight.name}: expected matrices of F8_E4M3 or F8_E5M2`);
  }
  const grid = gridOf(weight, scale, block);
  const [rows, columns] = weight.shape.slice(-2) as [number, number];
  return computedNumbers({
    name: weight.name,
    shape: weight.shape,
    fill: (target, first, count) => {
      const bytes = weightBytes.bytes(count * columns);
      weight.read(first * columns, bytes);
      const scales = rowScales.numbers(grid.perRow);
      let read = -1;
      for (let i = 0; i < count; i++) {
        const matrix = Math.floor((first + i) / rows);
        const line = Math.floor(((first + i) % rows) / grid.block[0]);
        const at = matrix * grid.perMatrix + line * grid.perRow;
        if (at !== read) readScales(scale, at, scales);
        read = at;
        for (let block = 0; block < grid.perRow; block++) {
          const own = scales[block]!;
          const from = i * columns + block * grid.block[1];
          const to = Math.min(from + grid.block[1], (i + 1) * columns);
          for (let j = from; j < to; j++) target[j] = values[bytes[j]!]! * own;
        }
      }
    },
  });
}

/** Keeps the format of MX weights: 32 weights of 8 or 4 bits per exponent. MLX reads the bytes as words. */
export function mxTensors(name: string, weight: StoredTensor, scale: StoredTensor): StoredTensor[] {
  const shape = [...weight.shape.slice(0, -1), weight.shape.at(-1)! / 4];
  return [
    { ...weight, name: `${name}.weight`, shape, format: "U32" },
    { ...scale, name: `${name}.scales`, format: "U8" },
  ];
}

/** Tells whether every 32 weights in a row share one exponent. `perByte` is the number of weights in a byte. */
export function isMx(weight: StoredTensor, scale: StoredTensor, perByte: 1 | 2): boolean {
  const groups = [...weight.shape.slice(0, -1), (weight.shape.at(-1)! * perByte) / 32];
  return ["F8_E8M0", "U8"].includes(scale.format) && scale.shape.join() === groups.join();
}

/**
 * Dequantizes pairs of 4-bit floats (outputs, inputs / 2): each is multiplied by its group's scale and divided by the
 * tensor's scale.
 */
export function scaledPairs(
  name: string,
  pairs: StoredTensor,
  scale: StoredTensor,
  divisor: StoredTensor,
): StoredTensor {
  const [outputs, half] = pairs.shape as [number, number];
  const groups = scale.shape.at(-1)!;
  const size = (2 * half) / groups;
  if (scale.shape.join() !== [outputs, groups].join() || !Number.isInteger(size)) {
    throw new LoadError(`${scale.name}: (${scale.shape}) scales do not fit (${pairs.shape})`);
  }
  const whole = new Float32Array(1);
  return computedNumbers({
    name: `${name}.weight`,
    shape: [outputs, 2 * half],
    fill: (target, first, count) => {
      const bytes = weightBytes.bytes(count * half);
      pairs.read(first * half, bytes);
      const scales = rowScales.numbers(count * groups);
      readScales(scale, first * groups, scales);
      readScales(divisor, 0, whole);
      for (let group = 0; group < scales.length; group++) {
        const own = Math.fround(scales[group]! / whole[0]!);
        for (let i = group * size; i < (group + 1) * size; i++) {
          const field = (bytes[i >> 1]! >> (4 * (i & 1))) & 15;
          target[i] = e2m1[field]! * own;
        }
      }
    },
  });
}
