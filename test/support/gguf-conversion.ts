// What llama.cpp's converter does to tensors, under the names that it gives them.

import type { FileTensor } from "../../src/self-test/tiny-weights.ts";
import type { GgufFile, GgufFileTensor } from "./gguf-file.ts";

export type Tensors = Map<string, FileTensor>;

/** What the converter does beside naming: to the metadata, and to tensors under the names of GGUF. */
export type Conversion = {
  metadata?: GgufFile["metadata"];
  change?: (all: Tensors, metadata: GgufFile["metadata"]) => void;
};

/** One change after the other. */
export const inTurn =
  (...changes: ((all: Tensors) => void)[]) =>
  (all: Tensors): void => {
    for (const change of changes) change(all);
  };

/** A head's size in most tiny models. */
const HEAD = 16;

export function rename(all: Tensors, from: RegExp, to: string): void {
  for (const [name, tensor] of [...all]) {
    if (!from.test(name)) continue;
    all.delete(name);
    all.set(name.replace(from, to), tensor);
  }
}

/** Those whose authors have a tensor an expert, or both halves in one. */
export function nameExperts(all: Tensors): void {
  const experts = /^model\.layers\.(\d+)\.block_sparse_moe\.switch_mlp\.(\w+)_proj\./;
  rename(all, experts, "blk.$1.ffn_$2_exps.");
}

/** Gates of experts above what they gate, in one tensor a layer. */
export function fuseExperts(all: Tensors): void {
  for (const [name, gate] of [...all]) {
    if (!name.endsWith(".ffn_gate_exps.weight")) continue;
    const upName = name.replace("gate", "up");
    const up = all.get(upName)!;
    const [experts, rows, columns] = gate.shape as [number, number, number];
    const each = Array.from({ length: experts }, (_, i) => [
      part(gate, i, experts),
      part(up, i, experts),
    ]);
    all.delete(name);
    all.delete(upName);
    const shape = [experts, 2 * rows, columns];
    all.set(name.replace("gate", "gate_up"), { ...below(each.flat()), shape });
  }
}

/** Each column divided by its length. */
export function normedColumns(tensor: FileTensor): FileTensor {
  const [numbers, columns] = [numbersIn(tensor), tensor.shape[1]!];
  const sums = new Float64Array(columns);
  for (const [i, x] of numbers.entries()) sums[i % columns]! += x * x;
  const made = numbers.map((x, i) => x / (Math.sqrt(sums[i % columns]!) + 1e-7));
  return { ...floats(made), shape: tensor.shape };
}

export function eachOf(
  all: Tensors,
  names: RegExp,
  change: (tensor: FileTensor) => FileTensor,
): void {
  for (const [name, tensor] of all) if (names.test(name)) all.set(name, change(tensor));
}

export function addToNorms(all: Tensors, added: (name: string) => number): void {
  for (const [name, tensor] of all) {
    if (!/norm(\.weight)?$/.test(name)) continue;
    const { shape } = tensor;
    all.set(name, { ...floats(numbersIn(tensor).map((x) => x + added(name))), shape });
  }
}

/** The converter's order of a llama's queries and keys. */
export function pairHeads(all: Tensors): void {
  const heads = (name: string, tensor: FileTensor) =>
    all.set(name, paired(tensor, tensor.shape[0]! / HEAD));
  for (const [name, tensor] of all) if (/attn_[qk]\./.test(name)) heads(name, tensor);
}

/** (heads, 2, D / 2) becomes (heads, D / 2, 2) */
export function paired(tensor: FileTensor, heads: number): FileTensor {
  const each = Array.from({ length: heads }, (_, i) => part(tensor, i, heads));
  return below(each.map((head) => regrouped(head, 2, head.shape[0]! / 2)));
}

/** Rows (a, b, ...) as (b, a, ...) */
export function regrouped(tensor: FileTensor, a: number, b: number): FileTensor {
  const order = Array.from({ length: a * b }, (_, i) => (i % a) * b + Math.floor(i / a));
  return { ...below(order.map((row) => part(tensor, row, a * b))), shape: tensor.shape };
}

export function part(tensor: FileTensor, index: number, parts: number): FileTensor {
  const [rows, ...rest] = tensor.shape as [number, ...number[]];
  const size = tensor.bytes.length / parts;
  const bytes = tensor.bytes.subarray(index * size, (index + 1) * size);
  return { ...tensor, shape: [rows / parts, ...rest], bytes };
}

export function below(parts: readonly FileTensor[]): FileTensor {
  const rows = parts.reduce((sum, { shape }) => sum + shape[0]!, 0);
  const bytes = Buffer.concat(parts.map((each) => each.bytes));
  return { ...parts[0]!, shape: [rows, ...parts[0]!.shape.slice(1)], bytes };
}

export function exchanged(tensor: FileTensor): FileTensor {
  const [rows, columns] = tensor.shape as [number, number];
  const numbers = numbersIn(tensor);
  const made = numbers.map((_, i) => numbers[(i % rows) * columns + Math.floor(i / rows)]!);
  return { ...floats(made), shape: [columns, rows] };
}

export function numbersIn({ bytes }: FileTensor): Float32Array {
  return new Float32Array(new Uint8Array(bytes).buffer);
}

export function floats(numbers: Float32Array): FileTensor {
  return { dtype: "F32", shape: [numbers.length], bytes: new Uint8Array(numbers.buffer) };
}

/** Those of the tiny EXAONE, unless it says others. */
const llama3 = { base: 10_000, factor: 8, low: 1, high: 4, context: 64 };

export function llama3Factors(dims: number, scaling = llama3): Float32Array {
  const { base, factor, low, high, context } = scaling;
  return Float32Array.from({ length: dims / 2 }, (_, i) => {
    const wave = 2 * Math.PI * base ** ((2 * i) / dims);
    if (wave < context / high) return 1;
    if (wave > context / low) return factor;
    const smooth = (context / wave - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}

/** As many numbers as share a scale in Q8_0, which is 1/256 for all: small matrices fit. */
const [BLOCK, SCALE] = [32, 1 / 256];

const isQuantized = ({ shape }: FileTensor) => shape.length === 2 && shape[1]! % BLOCK === 0;

const roundedTo = (x: number) => Math.max(-127, Math.min(127, Math.round(x / SCALE)));

/** Matrices as Q8_0. */
export function quantize(tensor: FileTensor): GgufFileTensor {
  const { shape, bytes } = tensor;
  if (!isQuantized(tensor)) return { type: "F32", shape, data: bytes };
  const numbers = numbersIn(tensor);
  const blocks = Array.from({ length: numbers.length / BLOCK }, (_, block) => {
    const own = numbers.subarray(block * BLOCK, (block + 1) * BLOCK);
    // 1/256 as float16.
    return Buffer.from([0x00, 0x1c, ...Int8Array.from(own, roundedTo)]);
  });
  return { type: "Q8_0", shape, data: Buffer.concat(blocks) };
}

/** The numbers that `quantize` keeps. */
export function dequantized(tensor: FileTensor): GgufFileTensor {
  const { shape, bytes } = tensor;
  if (!isQuantized(tensor)) return { type: "F32", shape, data: bytes };
  return { type: "F32", shape, data: numbersIn(tensor).map((x) => roundedTo(x) * SCALE) };
}
