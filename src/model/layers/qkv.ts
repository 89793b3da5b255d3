// Reorders matrices of queries, keys and values: we have all queries, then all keys, then all values, and feature i
// rotates with feature i + D / 2.
import { type RowRun, runsOf } from "../checkpoint/stored/arrangement.ts";
import type { StoredMatrices } from "../weights/stored-matrices.ts";
import type { StoredTensors } from "../weights/stored-tensors.ts";
import type { AttentionSizes } from "./layers.ts";

/** Files interleave per KV head: its queries, its key and its value in `qkv_proj`. */
export function arrangeGroups(
  matrices: StoredMatrices,
  name: string,
  { dims, heads, kvHeads, headDim }: AttentionSizes,
): void {
  // GGUF files have three matrices.
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

/** Files where neighbours rotate together: reorders the first `rotary` features of each head of queries and keys. */
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

/** The same for a norm's weights (heads, D). */
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

/** Each head has two parts side by side: the rows of all first parts, or of all second parts. */
export function everyOther(heads: number, headDim: number, part: 0 | 1): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    return { first: (2 * head + part) * headDim, count: headDim };
  });
}

/** Rows per head: the even rotary features, then the odd ones, then the others. */
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

/** Features per head: those without a position, then the rotary ones, pair by pair. */
export function neighbours(heads: number, plain: number, rotary: number): RowRun[] {
  return Array.from({ length: heads }, (_, head) => {
    const first = head * (plain + rotary);
    const pairs = Array.from({ length: rotary }, (_, i) => {
      return { first: first + plain + Math.floor(i / 2) + (i % 2) * (rotary / 2), count: 1 };
    });
    return [{ first, count: plain }, ...pairs];
  }).flat();
}
