// Folders as other tools quantize them: a small Llama whose matrices are random integers and scales in the format,
// and the same numbers as float32.
import {
  type FileTensors,
  f32,
  llamaShapes,
  randomNumbers,
  tinyConfig,
} from "./safetensors-file.ts";

type Matrix = { rows: number; columns: number; seed: number };

/** A matrix in a format: its tensors by kind, and its numbers. */
type Quantized = { tensors: FileTensors; numbers: Float32Array };

export type FolderFormat = { config: Record<string, unknown>; quantize(matrix: Matrix): Quantized };

export type QuantizedFolder = { config: object; tensors: FileTensors; numbers: FileTensors };

/** The same Llama in the format and in float32: its linear layers, not its embedding nor its norms. */
export function quantizedLlama(
  format: FolderFormat,
  config: typeof tinyConfig = tinyConfig,
): QuantizedFolder {
  const [tensors, numbers]: [FileTensors, FileTensors] = [{}, {}];
  let seed = 1;
  for (const [name, shape] of llamaShapes(config)) {
    const [rows, columns = 1] = shape as [number, number?];
    const plain = f32(shape, randomNumbers(rows * columns, seed++, 0.3));
    if (!name.includes("_proj")) {
      tensors[name] = plain;
      numbers[name] = plain;
      continue;
    }
    const made = format.quantize({ rows, columns, seed });
    numbers[name] = f32(shape, made.numbers);
    const stem = name.replace(/\.weight$/, "");
    for (const [kind, tensor] of Object.entries(made.tensors)) tensors[`${stem}.${kind}`] = tensor;
  }
  return { config: { ...config, quantization_config: format.config }, tensors, numbers };
}

/** Integers below `limit`. */
function integers(count: number, limit: number, seed: number): Uint32Array {
  return new Uint32Array(randomNumbers(count, seed).map((x) => Math.floor(((x + 1) / 2) * limit)));
}

/** As f16 has them, of about a fiftieth. */
function scales(count: number, seed: number): Float32Array {
  return randomNumbers(count, seed).map((x) => Math.f16round(0.02 + x / 100));
}

type Packed = { dtype: "I32"; shape: number[]; data: Int32Array };

/** Fields as words, so many to a word along an axis; `at` says what the field is. */
function pack(
  shape: readonly [number, number],
  perWord: number,
  at: (row: number, column: number, field: number) => number,
): Packed {
  const [rows, columns] = shape;
  const bits = 32 / perWord;
  const data = new Int32Array(rows * columns).map((_, i) => {
    let word = 0;
    for (let field = 0; field < perWord; field++) {
      word |= at(Math.floor(i / columns), i % columns, field) << (bits * field);
    }
    return word;
  });
  return { dtype: "I32", shape: [...shape], data };
}

/** scale * (q - zero), with the group of each input. */
function affine({ rows, columns, seed }: Matrix, bits: number, groupOf: (input: number) => number) {
  const groups = groupOf(columns - 1) + 1;
  const quants = integers(rows * columns, 2 ** bits, seed);
  const zeros = integers(groups * rows, 2 ** bits - 1, seed + 1000);
  const scale = scales(groups * rows, seed + 2000);
  const numbers = new Float32Array(quants).map((quant, i) => {
    const group = groupOf(i % columns) * rows + Math.floor(i / columns);
    return scale[group]! * (quant - zeros[group]! - 1);
  });
  return {
    groups,
    numbers,
    scale: { dtype: "F16" as const, shape: [groups, rows], data: new Float16Array(scale) },
    quant: (row: number, column: number) => quants[row * columns + column]!,
    /** One less than it is. */
    zero: (group: number, row: number) => zeros[group * rows + row]!,
  };
}

type ActOrder = "none" | "one" | "each its own";

function gptqFormat({
  bits = 4,
  groupSize = 32,
  actOrder = "none" as ActOrder,
} = {}): FolderFormat {
  return {
    config: { quant_method: "gptq", bits, group_size: groupSize, desc_act: actOrder !== "none" },
    quantize: (matrix) => {
      const { rows, columns } = matrix;
      // The next input is some places on, and the last one stays the last.
      const step = { none: 1, one: 7, "each its own": [7, 11, 13][matrix.seed % 3]! }[actOrder];
      const place = (input: number) => (input * step + step - 1) % columns;
      const groupOf = (input: number) => Math.floor(place(input) / groupSize);
      const { groups, numbers, scale, quant, zero } = affine(matrix, bits, groupOf);
      const perWord = 32 / bits;
      const group = Int32Array.from({ length: columns }, (_, input) => groupOf(input));
      return {
        numbers,
        tensors: {
          qweight: pack([columns / perWord, rows], perWord, (line, row, field) =>
            quant(row, line * perWord + field),
          ),
          qzeros: pack([groups, rows / perWord], perWord, (line, column, field) =>
            zero(line, column * perWord + field),
          ),
          scales: scale,
          g_idx: { dtype: "I32", shape: [columns], data: group },
        },
      };
    },
  };
}

function awqFormat({ groupSize = 32 } = {}): FolderFormat {
  const order = [0, 2, 4, 6, 1, 3, 5, 7];
  return {
    config: { quant_method: "awq", bits: 4, group_size: groupSize, version: "gemm" },
    quantize: (matrix) => {
      const { rows, columns } = matrix;
      const groupOf = (input: number) => Math.floor(input / groupSize);
      const { groups, numbers, scale, quant, zero } = affine(matrix, 4, groupOf);
      return {
        numbers,
        tensors: {
          qweight: pack([columns, rows / 8], 8, (input, column, field) =>
            quant(8 * column + order[field]!, input),
          ),
          qzeros: pack(
            [groups, rows / 8],
            8,
            (line, column, field) => zero(line, 8 * column + order[field]!) + 1,
          ),
          scales: scale,
        },
      };
    },
  };
}

/** Integers in rows as MLX has them, and one number in the middle for zero. */
function packQuantizedFormat({ bits = 4, groupSize = 32 } = {}): FolderFormat {
  return {
    config: { quant_method: "compressed-tensors", format: "pack-quantized" },
    quantize: ({ rows, columns, seed }) => {
      const groups = columns / groupSize;
      const quants = integers(rows * columns, 2 ** bits, seed);
      const scale = scales(rows * groups, seed + 1000);
      const perWord = 32 / bits;
      return {
        numbers: Float32Array.from(quants, (quant, i) => {
          return scale[Math.floor(i / groupSize)]! * (quant - 2 ** (bits - 1));
        }),
        tensors: {
          weight_packed: pack([rows, columns / perWord], perWord, (row, column, field) => {
            return quants[row * columns + column * perWord + field]!;
          }),
          weight_scale: { dtype: "F16", shape: [rows, groups], data: new Float16Array(scale) },
          weight_shape: {
            dtype: "I64",
            shape: [2],
            data: BigInt64Array.from([rows, columns], BigInt),
          },
        },
      };
    },
  };
}

/** Signed bytes, with a scale for each row. */
function intQuantizedFormat(): FolderFormat {
  return {
    config: { quant_method: "compressed-tensors", format: "int-quantized" },
    quantize: ({ rows, columns, seed }) => {
      const bytes = Int8Array.from(integers(rows * columns, 256, seed), (value) => value - 128);
      const scale = scales(rows, seed + 1000).map((value) => Math.f16round(value / 16));
      return {
        numbers: Float32Array.from(bytes, (byte, i) => scale[Math.floor(i / columns)]! * byte),
        tensors: {
          weight: { dtype: "I8", shape: [rows, columns], data: bytes },
          weight_scale: { dtype: "F16", shape: [rows, 1], data: new Float16Array(scale) },
          input_scale: f32([1], Float32Array.of(1)),
        },
      };
    },
  };
}

/** Floats of 8 bits, with a scale for a block of rows and columns, or one for all. */
function fp8Format(block?: number): FolderFormat {
  const valueOf = (byte: number) => {
    const [exponent, fraction] = [(byte >> 3) & 15, byte & 7];
    const size = exponent === 0 ? fraction * 2 ** -9 : (1 + fraction / 8) * 2 ** (exponent - 7);
    return byte & 128 ? -size : size;
  };
  return {
    config: { quant_method: "fp8", weight_block_size: block ? [block, block] : null },
    quantize: ({ rows, columns, seed }) => {
      // Exponents below 8, so that weights are not too large; and both signs.
      const bytes = Uint8Array.from(integers(rows * columns, 256, seed), (value) => value & 0xbf);
      const across = block ? Math.ceil(columns / block) : 1;
      const down = block ? Math.ceil(rows / block) : 1;
      const scale = scales(down * across, seed + 1000).map((value) => value * 8);
      const scaleOf = (row: number, column: number) =>
        block ? scale[Math.floor(row / block) * across + Math.floor(column / block)]! : scale[0]!;
      return {
        numbers: Float32Array.from(bytes, (byte, i) => {
          return valueOf(byte) * scaleOf(Math.floor(i / columns), i % columns);
        }),
        tensors: {
          weight: { dtype: "F8_E4M3", shape: [rows, columns], data: bytes },
          weight_scale_inv: f32(block ? [down, across] : [1], scale),
        },
      };
    },
  };
}

/** Ternary weights, four rows to a byte. */
function bitnetFormat(): FolderFormat {
  return {
    config: { quant_method: "bitnet", linear_class: "autobitlinear", quantization_mode: "offline" },
    quantize: ({ rows, columns, seed }) => {
      const ternary = integers(rows * columns, 3, seed);
      const quarter = (rows / 4) * columns;
      const data = Uint8Array.from({ length: quarter }, (_, i) => {
        return [0, 1, 2, 3].reduce((byte, j) => byte | (ternary[i + j * quarter]! << (2 * j)), 0);
      });
      return {
        numbers: Float32Array.from(ternary, (value) => (value - 1) * 0.25),
        tensors: {
          weight: { dtype: "U8", shape: [rows / 4, columns], data },
          weight_scale: f32([1], Float32Array.of(0.25)),
        },
      };
    },
  };
}

/** By name: one of each layout. */
export const folderFormats: Record<string, FolderFormat> = {
  "gptq with 4 bits": gptqFormat(),
  "gptq with 8 bits": gptqFormat({ bits: 8 }),
  "gptq with act-order": gptqFormat({ actOrder: "one" }),
  "gptq with an order for each matrix": gptqFormat({ actOrder: "each its own" }),
  awq: awqFormat(),
  "compressed-tensors with 4 bits": packQuantizedFormat(),
  "compressed-tensors with 8 bits": packQuantizedFormat({ bits: 8 }),
  "compressed-tensors with int8": intQuantizedFormat(),
  "fp8 in blocks": fp8Format(40),
  "fp8 with one scale": fp8Format(),
  bitnet: bitnetFormat(),
};
