// The plain KV store: two growing arrays a layer for each sequence. It is slow and obviously right; the
// paged store must give what this one gives.
import type { Norm } from "../../src/device/device.ts";
import { joinedRows } from "../../src/kernels/attention/latent-attention.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import { attention } from "../../src/mlx/fast.ts";
import {
  add,
  astype,
  concatenate,
  divide,
  expandDims,
  matmul,
  multiply,
  reshape,
  slice,
  softmax,
  split,
  squeeze,
  subtract,
  swapAxes,
  tanh,
  where,
} from "../../src/mlx/ops.ts";
import { hold } from "../../src/mlx/scope.ts";
import type { AttentionOptions, Heads, Step } from "../../src/model/contract/model.ts";
import type { Rope } from "../../src/model/contract/rope.ts";
import { causalMask } from "../../src/model/state/paged-kv-store.ts";
import {
  channelsOf,
  convolved,
  plainConvolution,
  plainRows,
  plainTokens,
  scanRows,
} from "../../src/self-test/plain-recurrence.ts";

type Cache = { keys: MlxArray; values: MlxArray }; // (kvHeads, L, D) each

/** One sequence's keys and values. */
export class ContiguousKv {
  /** Tokens whose keys and values are kept. */
  length = 0;
  readonly #layers: Cache[] = [];
  /** Of recurrent layers: the inputs that a convolution keeps, and the states of heads. */
  readonly inputs: number[][][] = [];
  readonly states: number[][][][] = [];

  /** What a layer has appended. */
  of(layer: number): Cache {
    return this.#layers[layer]!;
  }

  append(layer: number, keys: MlxArray, values: MlxArray): Cache {
    const before = this.#layers[layer];
    const grown = hold([
      before ? concatenate([before.keys, keys], 1) : keys,
      before ? concatenate([before.values, values], 1) : values,
    ] as const);
    before?.keys.free();
    before?.values.free();
    const [newKeys, newValues] = grown;
    this.#layers[layer] = { keys: newKeys, values: newValues };
    return this.#layers[layer];
  }

  free(): void {
    for (const { keys, values } of this.#layers.splice(0)) {
      keys.free();
      values.free();
    }
    this.inputs.length = 0;
    this.states.length = 0;
    this.length = 0;
  }
}

/** A step that adds tokens to these sequences, so many to each. In a scope: it makes arrays. */
export function contiguousStep(rows: readonly { kv: ContiguousKv; count: number }[]): Step {
  const starts = rows.map(({ kv }) => kv.length);
  const positions = rows.flatMap(({ count }, row) =>
    Array.from({ length: count }, (_, i) => starts[row]! + i),
  );
  for (const { kv, count } of rows) kv.length += count;
  /** Of their sequences. */
  const lengths = rows.flatMap(({ kv, count }) => Array<number>(count).fill(kv.length));
  return {
    positions: () => array(Int32Array.from(positions)),
    attend({ index }, qkv, heads, options) {
      const beyond = heads.rope?.long?.beyond ?? Number.POSITIVE_INFINITY;
      const grows = ({ kv }: { kv: ContiguousKv }, row: number) =>
        starts[row]! > 0 && starts[row]! <= beyond && kv.length > beyond;
      if (rows.some(grows)) throw new Error("keys of a short sequence that has become long");
      const [q, k, v] = prepareHeads(qkv, heads, positions, lengths);
      let at = 0;
      const outputs = rows.map(({ kv, count }) => {
        const part = (x: MlxArray) => swapAxes(slice(x, 0, at, at + count), 0, 1); // (heads, L, D)
        const queries = part(q);
        const cache = k && v ? kv.append(index, part(k), part(v)) : kv.of(index);
        at += count;
        const attended = attend(queries, cache, kv.length - count, options);
        return reshape(swapAxes(attended, 0, 1), [count, -1]);
      });
      return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
    },
    attendLatent({ index, heads, latent, rotary }, given, { scale, rope, norm }) {
      const { queries, latents } = joinedRows(given, { heads, latent, rotary }, norm);
      const placed = (x: MlxArray, own: number) => {
        const byHead = reshape(x, [-1, own, latent + rotary]);
        const [plain, rest] = split(byHead, [latent]) as [MlxArray, MlxArray];
        return rope ? concatenate([plain, rotatePairs(rest, rope, positions)], -1) : byHead;
      };
      const [q, k] = [placed(queries, heads), placed(latents, 1)];
      let at = 0;
      const outputs = rows.map(({ kv, count }) => {
        const part = (x: MlxArray) => swapAxes(slice(x, 0, at, at + count), 0, 1); // (heads, L, D)
        const cache = kv.append(index, part(k), slice(part(k), -1, 0, latent));
        const attended = attend(part(q), cache, kv.length - count, { scale });
        at += count;
        return reshape(swapAxes(attended, 0, 1), [count, -1]);
      });
      return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
    },
    convolve({ index, shape }, x, convolution) {
      const [kept, channels] = shape as [number, number];
      const plain = plainConvolution(convolution);
      const own = partsOf(channelsOf(plainRows(x), plain), rows);
      const outputs = rows.flatMap(({ kv }, i) => {
        const before =
          kv.inputs[index] ?? Array.from({ length: kept }, () => Array(channels).fill(0));
        const all = [...before, ...own[i]!];
        kv.inputs[index] = all.slice(-kept);
        return convolved(all, plain);
      });
      return astype(array(outputs.flat(), [outputs.length, channels]), x.dtype);
    },
    scan({ index, shape }, inputs, scan) {
      const [heads, values, keys] = shape as [number, number, number];
      const parts = partsOf(plainTokens(inputs, heads), rows);
      const outputs = rows.flatMap(({ kv }, i) => {
        kv.states[index] ??= Array.from({ length: heads }, () =>
          Array.from({ length: values }, () => Array(keys).fill(0)),
        );
        return scanRows(parts[i]!, kv.states[index], scan);
      });
      return astype(array(outputs.flat(), [outputs.length, heads * values]), inputs.x.dtype);
    },
  };
}

/** What belongs to each of the rows. */
function partsOf<T>(all: readonly T[], rows: readonly { count: number }[]): T[][] {
  let at = 0;
  return rows.map(({ count }) => {
    at += count;
    return all.slice(at - count, at);
  });
}

/** Queries (T, heads, D), keys and values (T, kvHeads, D), after the norms and RoPE. No keys and values are shared. */
function prepareHeads(
  qkv: MlxArray,
  { heads, kvHeads, headDim, qNorm, kNorm, vNorm, rope, sharesKv }: Heads,
  positions: readonly number[],
  lengths: readonly number[],
): [MlxArray] | [MlxArray, MlxArray, MlxArray] {
  const all = reshape(qkv, [-1, sharesKv ? heads : heads + 2 * kvHeads, headDim]);
  const prepared = (x: MlxArray, norm: Norm | undefined) => {
    const normed = norm ? norm(x) : x;
    return rope ? rotate(normed, rope, positions, lengths) : normed;
  };
  if (sharesKv) return [prepared(all, qNorm)];
  const [q, k, v] = split(all, [heads, heads + kvHeads], 1) as [MlxArray, MlxArray, MlxArray];
  return [prepared(q, qNorm), prepared(k, kNorm), vNorm ? vNorm(v) : v];
}

/** RoPE of x (T, heads, D): feature i rotates with feature i + dims / 2, in float32. `lengths`: of the tokens' sequences. */
function rotate(
  x: MlxArray,
  rope: Rope,
  positions: readonly number[],
  lengths: readonly number[] = [],
): MlxArray {
  const { dims, long } = rope;
  const own = { ...rope, wavelengths: rope.wavelengths.numbers() };
  const ofLong = long && { ...long, wavelengths: long.wavelengths.numbers() };
  const table = (f: (angle: number) => number) => {
    const factors = positions.flatMap((position, i) => {
      const isLong = ofLong !== undefined && lengths[i]! > ofLong.beyond;
      const { wavelengths, magnitude } = isLong ? ofLong : own;
      return wavelengths.map((wave) => magnitude * f(position / wave));
    });
    return array(Float32Array.from(factors), [positions.length, 1, dims / 2]);
  };
  const [cos, sin] = [table(Math.cos), table(Math.sin)];
  const [a, b, rest] = split(x, [dims / 2, dims]) as [MlxArray, MlxArray, MlxArray];
  const rotated = [
    subtract(multiply(a, cos), multiply(b, sin)),
    add(multiply(a, sin), multiply(b, cos)),
  ];
  return astype(concatenate([...rotated, rest], -1), x.dtype);
}

/** RoPE of all features of x (T, heads, D): feature 2i rotates with 2i + 1. */
function rotatePairs(x: MlxArray, rope: Rope, positions: readonly number[]): MlxArray {
  const [tokens, heads, dims] = x.shape as [number, number, number];
  const pairs = reshape(x, [tokens, heads, dims / 2, 2]);
  const halves = reshape(swapAxes(pairs, 2, 3), [tokens, heads, dims]);
  const rotated = reshape(rotate(halves, rope, positions), [tokens, heads, 2, dims / 2]);
  return reshape(swapAxes(rotated, 2, 3), [tokens, heads, dims]);
}

function attend(
  q: MlxArray, // (heads, L, D)
  { keys, values }: Cache,
  start: number,
  { scale, sinks, softcap, ...sight }: AttentionOptions,
): MlxArray {
  const { window } = sight;
  const [tokens, length] = [q.shape[1]!, keys.shape[1]!];
  const limited = window !== undefined && length > window;
  const mask =
    tokens === 1 && !limited ? undefined : causalMask({ first: 0, start, end: length }, sight);
  if (softcap !== undefined) return cappedAttention(q, { keys, values }, scale, softcap, mask);
  const one = (x: MlxArray) => expandDims(x, 0);
  const result = attention(one(q), one(keys), one(values), { scale, mask, sinks });
  return squeeze(result, 0);
}

function cappedAttention(
  q: MlxArray,
  { keys, values }: Cache,
  scale: number,
  softcap: number,
  mask: MlxArray | undefined,
): MlxArray {
  const [heads, tokens, headDim] = q.shape as [number, number, number];
  const [kvHeads] = keys.shape as [number];
  const grouped = reshape(multiply(q, scale), [kvHeads, heads / kvHeads, tokens, headDim]);
  const raw = matmul(grouped, expandDims(swapAxes(keys, 1, 2), 1)); // (kvHeads, group, L, T)
  const capped = multiply(tanh(divide(raw, softcap)), softcap);
  const scores = mask ? where(mask, capped, -Infinity) : capped;
  const result = matmul(softmax(scores), expandDims(values, 1));
  return reshape(result, [heads, tokens, headDim]);
}
