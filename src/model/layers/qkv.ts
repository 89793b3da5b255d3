// Reorders matrices of queries, keys and values to our order: all queries, all keys, all values, and feature i
// rotates with feature i + D / 2.
import { type RowRun, runsOf } from "../checkpoint/stored/arrangement.ts";
import type { StoredMatrices } from "../weights/stored-matrices.ts";
import type { StoredTensors } from "../weights/stored-tensors.ts";
import type { AttentionSizes } from "./layers.ts";

/** Reorders a `qkv_proj` that is interleaved by KV head: each KV head's queries, its key, its value. */
export function arrangeGroups(
  matrices: StoredMatrices,
  name: string,
  { dims, heads, kvHeads, headDim }: AttentionSizes,
): void {
  // Returns if there are three matrices, as in GGUF files.
  if (!matrices.has(`${name}.qkv_proj`)) return;
  const queries = heads / kvHeads;
  const runs = (at: number, count: number): RowRun[] =>
    Array.from({ length: kvHeads }, (_, group) => {
      return { first: (group * (queries + 2) + at) * headDim, count: count * headDim };
    });
  matrices.check(`${name}.qkv_proj`, [(heads + 2 * kvHeads) * headDim, dims]);
  matrices.reorder(`${name}.qkv_proj`, [
    ...runs(0, queries),
    ...runs(queries, 1),
    ...runs(queries + 1, 1),
  ]);
}

/** Puts even rotary features of queries and keys before odd ones, for files that rotate feature 2i with 2i + 1. */
export function arrangeHalves(
  matrices: StoredMatrices,
  name: string,
  { dims, heads, kvHeads, headDim }: AttentionSizes,
  rotary = headDim,
): void {
  const [queries, keys, values] = [heads, kvHeads, kvHeads].map((count) => count * headDim);
  if (matrices.has(`${name}.qkv_proj`)) {
    matrices.check(`${name}.qkv_proj`, [queries! + keys! + values!, dims]);
    const rest = { first: queries! + keys!, count: values! };
    matrices.reorder(`${name}.qkv_proj`, [...halves(heads + kvHeads, headDim, rotary), rest]);
    return;
  }
  for (const [part, count] of [
    ["q_proj", heads],
    ["k_proj", kvHeads],
  ] as const) {
    if (!matrices.has(`${name}.${part}`)) continue;
    matrices.check(`${name}.${part}`, [count * headDim, dims]);
    matrices.reorder(`${name}.${part}`, halves(count, headDim, rotary));
  }
}

/** Reorders the rotary features of a norm's weights (heads, D), like `arrangeHalves`. */
export function arrangeNormHalves(
  stored: StoredTensors,
  name: string,
  heads: number,
  { headDim }: AttentionSizes,
  rotary: number,
): void {
  const [rows, runs] = [heads * headDim, halves(heads, headDim, rotary)];
  stored.arrange([name], ([norm]) => runsOf(name, norm!, { rows, runs, shape: norm!.shape }));
}

/** Returns the rows of every head's first or second part (`part`), if heads consist of two parts side by side. */
export function everyOther(heads: number, headDim: number, part: 0 | 1): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    return { first: (2 * head + part) * headDim, count: headDim };
  });
}

/** Returns each head's rows in the order: even rotary features, odd rotary features, the others. */
export function halves(heads: number, headDim: number, rotary: number): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    const every = (first: number): RowRun[] =>
      Array.from({ length: rotary / 2 }, (_, i) => {
        return { first: head * headDim + 2 * i + first, count: 1 };
      });
    const rest = { first: head * headDim + rotary, count: headDim - rotary };
    return [...every(0), ...every(1), ...(rest.count > 0 ? [rest] : [])];
  }).flat();
}

/** Returns each head's features in the order: those without RoPE, then the rotary ones, pair by pair. */
export function neighbours(heads: number, plain: number, rotary: number): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    const first = head * (plain + rotary);
    const pairs = Array.from({ length: rotary }, (_, i) => {
      return { first: first + plain + Math.floor(i / 2) + (i % 2) * (rotary / 2), count: 1 };
    });
    return [{ first, count: plain }, ...pairs];
  }).flat();
}
