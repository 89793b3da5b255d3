// Reference convolutions and scans, in JavaScript numbers and plain loops. They implement Recurrence, so that they
// can replace the kernels in tests on a CPU, where they write to MLX's memory.
import type {
  Convolution,
  GivenGates,
  RawGates,
  Recurrence,
  RowMove,
  Scan,
  ScanInputs,
} from "../kernels/recurrence/recurrence.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import { astype } from "../mlx/ops.ts";

export type PlainConvolution = {
  weight: number[][];
  bias?: number[] | undefined;
  silu: boolean;
  column: number;
};

/** Cuts each row to the columns that the convolution reads. */
export function channelsOf(rows: number[][], { column, weight }: PlainConvolution): number[][] {
  return rows.map((row) => row.slice(column, column + weight[0]!.length));
}

/** Convolves one sequence. `inputs`: its kept inputs, then the new ones -> (count, channels) */
export function convolved(
  inputs: number[][],
  { weight, bias, silu }: PlainConvolution,
): number[][] {
  const kept = weight.length - 1;
  return inputs.slice(kept).map((newest, t) =>
    newest.map((_, c) => {
      const products = weight.map((taps, tap) => taps[c]! * inputs[t + tap]![c]!);
      const sum = products.reduce((a, b) => a + b, bias?.[c] ?? 0);
      return silu ? sum / (1 + Math.exp(-sum)) : sum;
    }),
  );
}

/** Scans one token of one head: updates the state (values, keys) and returns the token's output. */
function scanned(
  state: number[][],
  {
    query,
    key,
    value,
    decay,
    beta,
    erasing,
  }: {
    query: number[];
    key: number[];
    value: number[];
    decay: number[];
    beta: number;
    erasing?: { find: number[]; put: number[] } | undefined;
  },
  deltaRule: boolean,
): number[] {
  return state.map((row, v) => {
    for (const k of key.keys()) row[k]! *= decay[decay.length === 1 ? 0 : k]!;
    const found = deltaRule ? dot(row, key) : 0;
    const erased = erasing ? dot(row, erasing.find) : 0;
    const added = beta * (value[v]! - found);
    for (const [k, each] of key.entries())
      row[k]! += added * each - erased * (erasing?.put[k] ?? 0);
    return dot(row, query);
  });
}

/** Divides x by its root mean square and scales it. */
function normed(x: number[], eps: number, scale: number): number[] {
  const mean = dot(x, x) / x.length;
  return x.map((each) => (scale * each) / Math.sqrt(mean + eps));
}

const dot = (a: readonly number[], b: readonly number[]) =>
  a.reduce((sum, each, i) => sum + each * b[i]!, 0);

export const plainRows = (x: MlxArray): number[][] => {
  const width = x.shape.at(-1)!;
  const numbers = astype(x, "float32").numbers();
  return Array.from({ length: numbers.length / width }, (_, i) =>
    numbers.slice(i * width, (i + 1) * width),
  );
};

/** One token of a scan: its row of columns, and the gates of each head. */
export type PlainToken = {
  x: number[];
  heads: { decay: number[]; beta: number; finish: (read: number[]) => number[] }[];
};

export function plainTokens({ x, gates }: ScanInputs, heads: number): PlainToken[] {
  const rows = plainRows(x);
  const headsOf = "raw" in gates ? rawHeads(gates, heads) : givenHeads(gates, heads);
  return rows.map((row, t) => ({ x: row, heads: headsOf[t]! }));
}

function givenHeads({ decays, betas }: GivenGates, heads: number): PlainToken["heads"][] {
  const allBetas = plainRows(betas);
  return plainRows(decays).map((row, t) =>
    chunked(row, row.length / heads).map((decay, head) => {
      return { decay, beta: allBetas[t]![head]!, finish: (read) => read };
    }),
  );
}

function rawHeads({ raw, columns }: RawGates, heads: number): PlainToken["heads"][] {
  const { steps, betas, factor = 1, betaFactor = 1, limits = [0, Infinity], output } = columns;
  const [rate, bias] = [columns.rate.numbers(), columns.bias.numbers()];
  const weight = output && plainRows(output.norm.weight)[0]!;
  return plainRows(raw).map((row) =>
    chunked(rate, rate.length / heads).map((rates, head) => {
      const step = factor * row[steps + head]! + bias[head]!;
      const softplus = Math.max(step, 0) + Math.log1p(Math.exp(-Math.abs(step)));
      const size = Math.min(Math.max(softplus, limits[0]), limits[1]);
      return {
        decay: rates.map((each) => Math.exp(each * size)),
        beta: betas === undefined ? size : betaFactor / (1 + Math.exp(-row[betas + head]!)),
        finish: (read) =>
          output && weight
            ? normed(read, output.norm.eps, 1).map((x, d) => {
                const gate = row[output.column + head * read.length + d]!;
                return (x * weight[d]! * gate) / (1 + Math.exp(-gate));
              })
            : read,
      };
    }),
  );
}

/** Scans the tokens of one sequence and updates `states` (heads, values, keys). */
export function scanRows(
  tokens: readonly PlainToken[],
  states: number[][][],
  { keyHeads, columns, norm, deltaRule, erasing, skip }: Scan,
): number[][] {
  const heads = states.length;
  const [values, keys] = [states[0]!.length, states[0]![0]!.length];
  const skips = skip?.numbers();
  return tokens.map(({ x, heads: gates }) => {
    const part = (at: number, index: number, size: number) =>
      x.slice(at + index * size, at + (index + 1) * size);
    return states.flatMap((state, head) => {
      const keyHead = Math.floor(head / (heads / keyHeads));
      let [query, key] = [part(columns.queries, keyHead, keys), part(columns.keys, keyHead, keys)];
      if (norm) {
        query = normed(query, norm.eps, norm.queryScale);
        key = normed(key, norm.eps, norm.keyScale);
      }
      const { decay, beta, finish } = gates[head]!;
      const value = part(columns.values, head, values);
      const taken = erasing && {
        find: part(erasing.find, keyHead, keys),
        put: part(erasing.put, keyHead, keys),
      };
      const token = { query, key, value, decay, beta, erasing: taken };
      const read = scanned(state, token, deltaRule);
      return finish(read.map((each, v) => each + (skips?.[head] ?? 0) * value[v]!));
    });
  });
}

export function plainConvolution(convolution: Convolution): PlainConvolution {
  const { weight, bias, activation, column = 0 } = convolution;
  return {
    column,
    weight: plainRows(weight),
    bias: bias && plainRows(bias)[0],
    silu: activation === "silu",
  };
}

type PackedMove = [first: number, count: number, from: number, to: number];

function unpackMoves(moves: MlxArray): RowMove[] {
  const [[rows], ...each] = chunked(moves.numbers(), 4) as [number[], ...PackedMove[]];
  return each.slice(0, rows).map(([first, count, from, to]) => ({ first, count, from, to }));
}

/** Works on float32 pools in host memory. Reads all slots before it writes any, as a kernel launch may. */
export const plainRecurrence: Recurrence = {
  convolve(x, pool, moves, convolution) {
    evaluate(x, moves);
    const [, kept, channels] = pool.shape as [number, number, number];
    const plain = plainConvolution(convolution);
    const inputs = channelsOf(plainRows(x), plain);
    const states = slotsOf(pool);
    const rows = unpackMoves(moves).map((move) => {
      const before = move.from < 0 ? Array(kept * channels).fill(0) : states.read(move.from);
      const own = inputs.slice(move.first, move.first + move.count);
      return { move, all: [...chunked(before, channels), ...own] };
    });
    const outputs = rows.map(({ move, all }) => {
      states.write(move.to, all.slice(-kept).flat());
      return convolved(all, plain);
    });
    return astype(array(outputs.flat(2), [inputs.length, channels]), x.dtype);
  },
  scan(inputs, pool, moves, scan) {
    const { x, gates } = inputs;
    evaluate(x, moves, ...("raw" in gates ? [gates.raw] : [gates.decays, gates.betas]));
    const [, heads, values, keys] = pool.shape as [number, number, number, number];
    const tokens = plainTokens(inputs, heads);
    const states = slotsOf(pool);
    const rows = unpackMoves(moves).map((move) => {
      const before = move.from < 0 ? Array(heads * values * keys).fill(0) : states.read(move.from);
      return { move, state: chunked(chunked(before, keys), values) };
    });
    const outputs = rows.flatMap(({ move: { first, count, to }, state }) => {
      const read = scanRows(tokens.slice(first, first + count), state, scan);
      states.write(to, state.flat(2));
      return read;
    });
    return astype(array(outputs.flat(), [tokens.length, heads * values]), x.dtype);
  },
  free() {},
};

function chunked<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: items.length / size }, (_, i) =>
    items.slice(i * size, (i + 1) * size),
  );
}

function slotsOf(pool: MlxArray) {
  const memory = new Float32Array(pool.memory());
  const size = memory.length / pool.shape[0]!;
  return {
    read: (slot: number) => [...memory.subarray(slot * size, (slot + 1) * size)],
    write: (slot: number, numbers: readonly number[]) => memory.set(numbers, slot * size),
  };
}
