// Runs steps on a GPU without waiting for it. A step is launched and read later; the tokens that it draws
// go on to the next one on the device. Steps of decoding rows alone are compiled, once for each of a few
// sizes that batches are filled up to, and on CUDA recorded: what is left of them on our side is a single call.

import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, asyncEvaluate, type MlxArray } from "../mlx/array.ts";
import { argmax, astype, less, max, maximum, multiply, slice, take, where } from "../mlx/ops.ts";
import { Recorded, staged } from "../mlx/recording.ts";
import { hold, Scope } from "../mlx/scope.ts";
import { behind, type DeviceKvStore, type KvRow, splitsFor, tablesOf } from "./device-kv-store.ts";
import type { Model } from "./model.ts";
import { type Launched, type StepInputs, sumRows } from "./runner.ts";
import {
  type Draw,
  isPlain,
  looksBack,
  type SampleRow,
  type Scoring,
  sample,
  score,
} from "./sampler.ts";

export class DeviceRunner {
  /** How many forward passes there were. */
  forwards = 0;
  readonly depth = 2;
  readonly #model: Model;
  readonly #store: DeviceKvStore;
  readonly #decoding = new Map<string, Recorded>();
  /** What the last step draws (R). */
  #drawn: MlxArray | undefined;
  /** Something that the last step makes, until that is read. */
  #latest: MlxArray | undefined;

  constructor(model: Model, store: DeviceKvStore) {
    this.#model = model;
    this.#store = store;
  }

  launch(inputs: StepInputs): Launched {
    using _ = new Scope();
    this.forwards += 1;
    const { rows, copies, samples, scores, sums } = inputs;
    const isDecode =
      copies.length + scores.length + sums.length === 0 &&
      samples.length === rows.length &&
      rows.every(({ count }) => count === 1);
    return this.#start(
      isDecode ? this.#decode(inputs) : this.#mixed(inputs),
      samples.map(({ row }) => row),
    );
  }

  /** Runs every size of batch, for nothing, so that its kernels are compiled. */
  warmUp(maxBatch: number, maxLength: number): void {
    const run = (...rows: readonly KvRow[]) => {
      const tokens = new Uint32Array(rows.reduce((sum, { count }) => sum + count, 0));
      const samples = rows.map((_, at) => ({ at, row: greedy }));
      this.launch({ tokens, rows, samples, copies: [], scores: [], sums: [] }).read();
    };
    const { scratch } = this.#store;
    const rowOf = (start: number, count: number): KvRow => {
      return {
        start,
        count,
        table: Array(Math.ceil((start + count) / BLOCK_TOKENS)).fill(scratch),
      };
    };
    for (const beside of [1, maxBatch]) {
      run(...Array<KvRow>(beside).fill(rowOf(0, 1)), rowOf(0, BLOCK_TOKENS));
    }
    const sizes = new Set(Array.from({ length: maxBatch }, (_, i) => filledUp(i + 1)));
    for (const size of sizes) {
      const ways = new Set<number>();
      for (let length = 1; length <= maxLength; length *= 2) {
        const rows = Array<KvRow>(size).fill(rowOf(length - 1, 1));
        const splits = splitsFor(rows, this.#model.shape.kvHeads);
        if (ways.has(splits)) continue;
        ways.add(splits);
        // The second time it is recorded.
        for (let i = 0; i < 2; i++) run(...rows);
      }
    }
  }

  /** After all that was launched has been read. */
  free(): void {
    this.#drawn?.free();
    for (const each of this.#decoding.values()) each.free();
  }

  #mixed(inputs: StepInputs): Forward {
    const { rows, copies, samples, scores, sums } = inputs;
    const step = this.#store.begin(rows, copies);
    const hidden = this.#model.forward(this.#tokens(inputs, inputs.tokens.length), step); // (T, D)
    const scored = scores.map(({ at, next, top }) =>
      score(this.#model.logits(slice(hidden, 0, at, at + next.length)), next, top),
    );
    const added = sums.map((span) => sumRows(hidden, span));
    if (samples.length === 0) return { scored, added, hidden };
    const sampled = take(hidden, array(Int32Array.from(samples, ({ at }) => at))); // (R, D)
    return { logits: this.#model.logits(sampled), scored, added };
  }

  #decode(inputs: StepInputs): Forward {
    const { rows, samples } = inputs;
    const size = filledUp(rows.length);
    const filler: KvRow = { start: 0, count: 1, table: [this.#store.scratch] };
    const all = [...rows, ...Array<KvRow>(size - rows.length).fill(filler)];
    const { tables, width } = tablesOf(all);
    const splits = splitsFor(all, this.#model.shape.kvHeads);
    const decoding = this.#decodingOf(size, width, splits);
    const tokens = this.#tokens(inputs, size);
    const [best, highest, logits] = decoding.call(tokens, staged(tables));
    const isPlainStep = samples.every(({ row }) => isPlain(row));
    if (isPlainStep) return { likeliest: likeliest(best!, highest!, samples.length) };
    const own = slice(logits!, 0, 0, rows.length);
    // A copy: rows may be drawn when the next step has been launched, which makes its own in the same place.
    return { logits: decoding.isRecorded ? multiply(own, 1) : own };
  }

  /** tokens (B), tables -> the likeliest tokens (B), their logits, all logits */
  #decodingOf(size: number, width: number, splits: number): Recorded {
    const key = `${size} ${width} ${splits}`;
    const decoding =
      this.#decoding.get(key) ??
      new Recorded(([tokens, tables]) => {
        const step = this.#store.decodeStep(tables!, splits);
        const logits = this.#model.logits(this.#model.forward(tokens!, step));
        // As they are read: another conversion would wait behind the next step.
        return [argmax(logits), astype(max(logits, -1), "float32"), logits];
      });
    this.#decoding.set(key, decoding);
    return decoding;
  }

  /** The step's tokens, of which the step before may yet have to draw some. */
  #tokens({ tokens, fed }: StepInputs, size: number): MlxArray {
    const known = new Uint32Array(size);
    known.set(tokens);
    const drawn = this.#drawn;
    // A prompt goes on where the step before it ends.
    if (!fed || !drawn) return this.#latest ? behind(staged(known), this.#latest) : staged(known);
    const isSame = drawn.shape[0] === size && fed.every((sample, i) => sample === i);
    if (isSame) return drawn;
    const indices = new Int32Array(size).fill(-1);
    indices.set(fed);
    const from = staged(indices);
    return where(less(from, 0), staged(known), take(drawn, maximum(from, 0)));
  }

  #start(forward: Forward, rows: readonly SampleRow[]): Launched {
    const { likeliest, logits, scored = [], added = [], hidden } = forward;
    /** What is freed when all was read. */
    const kept = new Set<MlxArray>();
    let before: MlxArray | undefined;
    let drawn: Draw | undefined;
    let failure: unknown;
    const begin = (arrays: readonly MlxArray[], next: MlxArray | undefined) => {
      for (const each of arrays) if (each !== next) kept.add(each);
      const all = [...new Set([...arrays, ...(next ? [next] : [])])];
      hold(all);
      asyncEvaluate(...all);
      this.#latest = all[0];
    };
    const others = [
      ...scored.flatMap(({ pending }) => pending),
      ...added,
      ...(hidden ? [hidden] : []),
    ];
    const draw = (beside: readonly MlxArray[]) => {
      drawn = likeliest ?? (logits && sample(logits, rows));
      const next = drawn && astype(drawn.tokens(), "uint32");
      begin([...(drawn?.pending ?? []), ...beside], next);
      // The next step takes its tokens from it; the one before has been launched with its own.
      before = this.#drawn;
      this.#drawn = next;
    };
    let isDrawn = !rows.some(looksBack);
    if (isDrawn) draw(others);
    else begin([logits!, ...others], undefined);
    return {
      draw: () => {
        if (isDrawn) return;
        isDrawn = true;
        using _ = new Scope();
        try {
          draw([]);
        } catch (error) {
          failure = error;
        }
      },
      read: () => {
        try {
          if (failure) throw failure;
          return {
            sampled: drawn?.read() ?? [],
            scored: scored.map(({ read }) => read()),
            sums: added.map((each) => Float32Array.from(each.numbers())),
          };
        } finally {
          for (const each of kept) each.free();
          before?.free();
          if (this.#latest && kept.has(this.#latest)) this.#latest = undefined;
        }
      },
    };
  }
}

/** What a forward pass makes: logits of the rows that are sampled, or at once their likeliest tokens;
 * scores, sums; its hidden states where nothing else needs them computed. */
type Forward = {
  likeliest?: Draw;
  logits?: MlxArray;
  scored?: readonly { pending: Scoring["pending"]; read(): ReturnType<Scoring["read"]> }[];
  added?: readonly MlxArray[];
  hidden?: MlxArray;
};

const greedy: SampleRow = {
  sampling: { temperature: 0, seed: 0 },
  tokens: () => new Uint32Array(1),
  promptLength: 1,
  index: 0,
};

/** tokens (B) and their logits, of which the first so many count. */
function likeliest(tokens: MlxArray, logits: MlxArray, count: number): Draw {
  return {
    tokens: () => tokens,
    pending: [tokens, logits],
    read() {
      const [ids, values] = [tokens.numbers(), logits.numbers()];
      return Array.from({ length: count }, (_, i) => {
        return { token: Number.isFinite(values[i]) ? ids[i]! : undefined };
      });
    },
  };
}

/** A few sizes: with each row more up to 8, then in steps of a quarter of the power of two below. */
function filledUp(rows: number): number {
  const step = Math.max(1, 2 ** (Math.ceil(Math.log2(rows)) - 3));
  return Math.ceil(rows / step) * step;
}
