// The same weights as the authors of a model publish them. A case of configs.json says in which ways that differs
// from MLX's files; scripts/goldens/models.py does the same and lets mlx-lm read it.
import type { FileTensor } from "../../src/self-test/tiny-weights.ts";

/** In this order. Convolutions are always (channels, 1, taps), and not (channels, taps, 1). */
export type AuthorsLayout = {
  /** Parts of the names of weights that are kept as their distance from 1. */
  fromOne?: string[];
  /** Weights that MLX's files hold multiplied, by all rows or by so many rows each. */
  factors?: Record<string, number | [rows: number, factor: number][]>;
  /** [gate, up, both]: two matrices below each other, experts or not. */
  joined?: [string, string, string][];
  /** One matrix as several of as many rows each. */
  split?: Record<string, string[]>;
  /** Rows (a, b, ...) as (b, a, ...). */
  regrouped?: Record<string, [a: number, b: number]>;
  /** Parts of the names of matrices, of experts or not, with rows and columns exchanged. */
  transposed?: string[];
  /** Parts of names -> those of matrices that have as many rows each. */
  parted?: Record<string, string[]>;
  /** Parts of names. */
  names?: Record<string, string>;
  /** A tensor an expert; in `experts` unless it says where. */
  separate?: boolean | string;
  /** Parts of experts that MLX's files have apart, rows of all below each other, and whether they are transposed. */
  together?: Record<string, boolean>;
  /** What heads make of latents in one matrix. */
  joint?: boolean;
};

export function inAuthorsLayout(
  file: ReadonlyMap<string, FileTensor>,
  layout: AuthorsLayout,
): Map<string, FileTensor> {
  const { fromOne = [], factors = {}, joined = [], transposed = [], names = {} } = layout;
  const { split = {}, regrouped = {} } = layout;
  const result = new Map<string, FileTensor>();
  for (const [name, stored] of file) {
    const { shape } = stored;
    let tensor = stored;
    if (shape.length === 3 && shape[2] === 1)
      tensor = { ...stored, shape: [shape[0]!, 1, shape[1]!] };
    if (fromOne.some((part) => name.includes(part))) tensor = mapped(tensor, (x) => x - 1);
    for (const [part, factor] of Object.entries(factors)) {
      if (!name.includes(part)) continue;
      const rows = typeof factor === "number" ? [[shape[0]!, factor] as const] : factor;
      const byRow = rows.flatMap(([count, each]) => Array<number>(count).fill(each));
      const columns = shape[1]!;
      tensor = mapped(tensor, (x, i) => x / byRow[Math.floor(i / columns)]!);
    }
    result.set(name, tensor);
  }
  for (const [gate, up, both] of joined) {
    for (const [name, tensor] of [...result]) {
      if (!name.includes(gate)) continue;
      const other = name.replace(gate, up);
      result.set(name.replace(gate, both), below(tensor, result.get(other)!));
      result.delete(name);
      result.delete(other);
    }
  }
  for (const [name, tensor] of [...result]) {
    for (const [part, parts] of Object.entries(split)) {
      if (!name.includes(part)) continue;
      result.delete(name);
      for (const [i, own] of parts.entries()) {
        result.set(name.replace(part, own), rowsOf(tensor, i, parts.length));
      }
    }
    for (const [part, [a, b]] of Object.entries(regrouped)) {
      if (!name.includes(part)) continue;
      const order = Array.from({ length: a * b }, (_, i) => (i % a) * b + Math.floor(i / a));
      const rows = order.map((row) => rowsOf(tensor, row, a * b).bytes);
      result.set(name, { ...tensor, bytes: Buffer.concat(rows) });
    }
  }
  for (const [name, tensor] of [...result]) {
    if (transposed.some((part) => name.includes(part))) result.set(name, exchanged(tensor));
  }
  for (const [part, parts] of Object.entries(layout.parted ?? {})) {
    for (const [name, tensor] of [...result]) {
      if (!name.includes(part)) continue;
      result.delete(name);
      const [rows, size] = [tensor.shape[0]! / parts.length, tensor.bytes.length / parts.length];
      for (const [i, own] of parts.entries()) {
        const bytes = tensor.bytes.subarray(i * size, (i + 1) * size);
        result.set(name.replace(part, own), {
          ...tensor,
          shape: tensor.shape.with(0, rows),
          bytes,
        });
      }
    }
  }
  const named = (name: string) =>
    Object.entries(names).reduce((all, [from, to]) => all.replace(from, to), name);
  const all = new Map(Array.from(result, ([name, tensor]) => [named(name), tensor]));
  const { separate: separated, together: gathered } = layout;
  const apart = separated
    ? separate(all, separated === true ? "experts" : separated)
    : gathered
      ? together(all, gathered)
      : all;
  return layout.joint ? joint(apart) : apart;
}

/** DBRX's way: experts.0.w1.weight and so on as experts.mlp.w1. */
function together(
  file: ReadonlyMap<string, FileTensor>,
  parts: Record<string, boolean>,
): Map<string, FileTensor> {
  const result = new Map<string, FileTensor>();
  for (const [name, tensor] of file) {
    const [, prefix, part] = /^(.*\.experts)\.\d+\.(\w+)\.weight$/.exec(name) ?? [];
    if (!prefix || !part) {
      result.set(name, tensor);
      continue;
    }
    const [rows, columns] = tensor.shape as [number, number];
    const own = parts[part]
      ? { ...exchanged({ ...tensor, shape: [1, rows, columns] }), shape: [columns, rows] }
      : tensor;
    const before = result.get(`${prefix}.mlp.${part}`);
    result.set(`${prefix}.mlp.${part}`, before ? below(before, own) : own);
  }
  return result;
}

/** A tensor an expert, under its number. */
export function separate(
  file: ReadonlyMap<string, FileTensor>,
  where = "experts",
): Map<string, FileTensor> {
  const result = new Map<string, FileTensor>();
  for (const [name, { dtype, shape, bytes }] of file) {
    const count = name.includes(".switch_mlp.") ? shape[0]! : 0;
    if (count === 0) result.set(name, { dtype, shape, bytes });
    for (let i = 0; i < count; i++) {
      const size = bytes.length / count;
      result.set(name.replace("switch_mlp", `${where}.${i}`), {
        dtype,
        shape: shape.slice(1),
        bytes: bytes.subarray(i * size, (i + 1) * size),
      });
    }
  }
  return result;
}

/** DeepSeek's way: what heads make of latents, keys and values of each head in turn, in one matrix of float32. */
export function joint(file: ReadonlyMap<string, FileTensor>): Map<string, FileTensor> {
  const result = new Map(file);
  for (const [name, values] of file) {
    if (!name.endsWith(".unembed_out.weight")) continue;
    const embedQ = name.replace("unembed_out", "embed_q");
    const keys = file.get(embedQ)!;
    const [heads, latent, plain] = keys.shape as [number, number, number];
    const all = Array.from({ length: heads }, (_, head) => [
      transposed(headOf(keys, head), latent, plain),
      headOf(values, head),
    ]);
    result.delete(name);
    result.delete(embedQ);
    result.set(name.replace("unembed_out", "kv_b_proj"), {
      dtype: "F32",
      shape: [heads * (plain + values.shape[1]!), latent],
      bytes: Buffer.concat(
        all
          .flat()
          .map(
            ({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer, byteOffset, byteLength),
          ),
      ),
    });
  }
  return result;
}

function headOf(tensor: FileTensor, head: number): Float32Array {
  const numbers = numbersOf(tensor);
  const size = numbers.length / tensor.shape[0]!;
  return numbers.subarray(head * size, (head + 1) * size);
}

function transposed(numbers: Float32Array, rows: number, columns: number): Float32Array {
  return numbers.map((_, i) => numbers[(i % rows) * columns + Math.floor(i / rows)]!);
}

function mapped(tensor: FileTensor, change: (x: number, i: number) => number): FileTensor {
  const numbers = numbersOf(tensor).map(change);
  return { ...tensor, bytes: new Uint8Array(numbers.buffer) };
}

function exchanged(tensor: FileTensor): FileTensor {
  const [rows, columns] = tensor.shape.slice(-2) as [number, number];
  const { buffer, byteOffset, byteLength } = tensor.bytes;
  const numbers = new Float32Array(buffer, byteOffset, byteLength / 4);
  const size = rows * columns;
  const made = numbers.map((_, i) => {
    const [column, row] = [Math.floor((i % size) / rows), i % rows];
    return numbers[i - (i % size) + row * columns + column]!;
  });
  const shape = [...tensor.shape.slice(0, -2), columns, rows];
  return { ...tensor, shape, bytes: new Uint8Array(made.buffer) };
}

/** Of its rows in so many equal parts, one. */
function rowsOf(tensor: FileTensor, index: number, parts: number): FileTensor {
  const [rows, ...rest] = tensor.shape as [number, ...number[]];
  const size = tensor.bytes.length / parts;
  const bytes = tensor.bytes.subarray(index * size, (index + 1) * size);
  return { ...tensor, shape: [rows / parts, ...rest], bytes };
}

/** Row below row, of each expert where there are some. */
function below(a: FileTensor, b: FileTensor): FileTensor {
  const shape = a.shape.with(-2, a.shape.at(-2)! + b.shape.at(-2)!);
  const experts = a.shape.length === 3 ? a.shape[0]! : 1;
  const size = a.bytes.length / experts;
  const part = (bytes: Uint8Array, i: number) => bytes.subarray(i * size, (i + 1) * size);
  const parts = Array.from({ length: experts }, (_, i) => [part(a.bytes, i), part(b.bytes, i)]);
  return { ...a, shape, bytes: Buffer.concat(parts.flat()) };
}

function numbersOf({ bytes }: FileTensor): Float32Array {
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
}
