// Runs steps on a GPU without waiting for it. A step is launched and read later; the tokens that it draws
// go on to the next one on the device. Steps of decoding rows alone are compiled, once for each of a few
// sizes that batches are filled up to: what is left of them on our side is a single call.
import { array, asyncEvaluate, type MlxArray } from "../mlx/array.ts";
import { Compiled } from "../mlx/compile.ts";
import { argmax, astype, less, max, maximum, slice, take, where } from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import { type DeviceKvStore, type KvRow, splitsFor, tablesOf } from "./device-kv-store.ts";
import type { Model } from "./model.ts";
import { type Launched, type StepInputs, sumRows } from "./runner.ts";
import { type Draw, isPlain, type Scoring, sample, score } from "./sampler.ts";

export class DeviceRunner {
  /** How many forward passes there were. */
  forwards = 0;
  readonly depth = 2;
  readonly #model: Model;
  readonly #store: DeviceKvStore;
  readonly #compiled = new Map<string, Compiled>();
  /** What the last step draws (R). */
  #drawn: MlxArray | undefined;

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
    if (isDecode) return this.#start({ draw: this.#decode(inputs) });
    const step = this.#store.begin(rows, copies);
    const hidden = this.#model.forward(this.#tokens(inputs, inputs.tokens.length), step); // (T, D)
    const scored = scores.map(({ at, next, top }) =>
      score(this.#model.logits(slice(hidden, 0, at, at + next.length)), next, top),
    );
    const added = sums.map((span) => sumRows(hidden, span));
    if (samples.length === 0) return this.#start({ scored, added, hidden });
    const sampled = take(hidden, array(Int32Array.from(samples, ({ at }) => at))); // (R, D)
    const draw = sample(
      this.#model.logits(sampled),
      samples.map(({ row }) => row),
    );
    return this.#start({ draw, scored, added });
  }

  /** After all that was launched has been read. */
  free(): void {
    this.#drawn?.free();
    for (const each of this.#compiled.values()) each.free();
  }

  #decode(inputs: StepInputs): Draw {
    const { rows, samples } = inputs;
    const size = filledUp(rows.length);
    const filler: KvRow = { start: 0, count: 1, table: [this.#store.scratch] };
    const all = [...rows, ...Array<KvRow>(size - rows.length).fill(filler)];
    const { tables, width } = tablesOf(all);
    const splits = splitsFor(all, this.#model.shape.kvHeads);
    const compiled = this.#compiledFor(size, width, splits);
    const tokens = this.#tokens(inputs, size);
    const [best, highest, logits] = compiled.call(tokens, array(tables));
    if (!samples.every(({ row }) => isPlain(row))) {
      return sample(
        slice(logits!, 0, 0, rows.length),
        samples.map(({ row }) => row),
      );
    }
    return {
      tokens: () => best!,
      pending: [best!, highest!],
      read() {
        const [ids, values] = [best!.numbers(), highest!.numbers()];
        return samples.map((_, i) => ({ token: Number.isFinite(values[i]) ? ids[i]! : undefined }));
      },
    };
  }

  /** tokens (B), tables -> the likeliest tokens (B), their logits, all logits */
  #compiledFor(size: number, width: number, splits: number): Compiled {
    const key = `${size} ${width} ${splits}`;
    const compiled =
      this.#compiled.get(key) ??
      new Compiled(([tokens, tables]) => {
        const step = this.#store.decodeStep(tables!, splits);
        const logits = this.#model.logits(this.#model.forward(tokens!, step));
        return [argmax(logits), max(logits, -1), logits];
      });
    this.#compiled.set(key, compiled);
    return compiled;
  }

  /** The step's tokens, of which the step before may yet have to draw some. */
  #tokens({ tokens, fed }: StepInputs, size: number): MlxArray {
    const known = new Uint32Array(size);
    known.set(tokens);
    const drawn = this.#drawn;
    if (!fed || !drawn) return array(known);
    const isSame = drawn.shape[0] === size && fed.every((sample, i) => sample === i);
    if (isSame) return drawn;
    const indices = new Int32Array(size).fill(-1);
    indices.set(fed);
    const from = array(indices);
    return where(less(from, 0), array(known), take(drawn, maximum(from, 0)));
  }

  #start({ draw, scored = [], added = [], hidden }: Made): Launched {
    const drawn = draw && astype(draw.tokens(), "uint32");
    const pending = [
      ...(draw?.pending ?? []),
      ...scored.flatMap((each) => each.pending),
      ...added,
      ...(hidden ? [hidden] : []),
    ];
    const kept = new Set(pending);
    if (drawn) kept.delete(drawn);
    hold([...kept, ...(drawn ? [drawn] : [])]);
    asyncEvaluate(...kept, ...(drawn ? [drawn] : []));
    // The next step takes its tokens from it; the one before has been launched with its own.
    const before = this.#drawn;
    this.#drawn = drawn;
    return {
      read: () => {
        try {
          return {
            sampled: draw?.read() ?? [],
            scored: scored.map(({ read }) => read()),
            sums: added.map((each) => Float32Array.from(each.numbers())),
          };
        } finally {
          for (const each of kept) each.free();
          before?.free();
        }
      },
    };
  }
}

/** What a step makes: tokens, scores, sums; its hidden states where nothing else needs them computed. */
type Made = {
  draw?: Draw;
  scored?: readonly { pending: Scoring["pending"]; read(): ReturnType<Scoring["read"]> }[];
  added?: readonly MlxArray[];
  hidden?: MlxArray;
};

/** A few sizes: with each row more up to 8, then in steps of a quarter of the power of two below. */
function filledUp(rows: number): number {
  const step = Math.max(1, 2 ** (Math.ceil(Math.log2(rows)) - 3));
  return Math.ceil(rows / step) * step;
}
