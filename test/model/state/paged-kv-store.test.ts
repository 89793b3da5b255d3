// The store beside the plain one, fed with the same random queries, keys and values: with the CPU's own
// operations, and with plain arithmetic in the place of a GPU's kernels. Every block is
// filled with large numbers beforehand, so that a place that is read and should not be is noticed.
import { afterEach, describe, expect, test } from "bun:test";
import type { Device } from "../../../src/device/device.ts";
import { BLOCK_TOKENS } from "../../../src/kv/blocks.ts";
import type { BlockCopy } from "../../../src/kv/kv-cache.ts";
import { array, evaluate, liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { concatenate, reshape, swapAxes, take } from "../../../src/mlx/ops.ts";
import { hold, Scope } from "../../../src/mlx/scope.ts";
import type {
  AttentionOptions,
  Model,
  ModelShape,
  Step,
} from "../../../src/model/contract/model.ts";
import { LayerStates } from "../../../src/model/contract/states.ts";
import { Runner } from "../../../src/model/run/runner.ts";
import { StateStore } from "../../../src/model/state/state-store.ts";
import { ContiguousKv, contiguousStep } from "../../support/contiguous-kv.ts";
import { deviceOf, plainGpu } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";

useMlx();

const [HEADS, KV_HEADS, HEAD_DIM, LAYERS] = [4, 2, 8, 2];
const shape: ModelShape = { dims: HEADS * HEAD_DIM, vocabulary: 16, layers: 1, maxPositions: 1000 };
const layerStates = new LayerStates();
const states = Array.from({ length: LAYERS }, () =>
  layerStates.kv({ heads: HEADS, kvHeads: KV_HEADS, headDim: HEAD_DIM }),
);

const TOLERANCE = 1e-5;
const plain: AttentionOptions = { scale: HEAD_DIM ** -0.5 };

/** One layer's queries, keys and values of T tokens: numbers in row order. */
type Fed = { q: number[]; k: number[]; v: number[] };

/** A sequence in both stores; `fed` is what each layer got, for those that begin as copies of it. */
type Twin = {
  kv: ContiguousKv;
  table: number[];
  length: number;
  fed: { k: number[]; v: number[] }[];
};

type TwinRow = { twin: Twin; count: number };

/** A store and the plain one, side by side. */
class Bench {
  readonly store: StateStore;
  readonly device: Device;
  readonly free: number[];
  readonly #random = makeRandom(9);
  readonly #twins: Twin[] = [];
  readonly #dtype: Dtype;

  constructor(kind: "cpu" | "plain" | "gathering", blocks = 40, dtype: Dtype = "float32") {
    const plainDevice = { ...plainGpu(), ...(kind === "gathering" && { longPrompt: 20 }) };
    this.device = kind === "cpu" ? deviceOf("cpu") : plainDevice;
    this.store = new StateStore(this.device, layerStates, { groups: [{ blocks }] }, dtype);
    this.#dtype = dtype;
    this.free = shuffled([...Array(blocks).keys()]);
    const rows = this.free.map((block) => ({ start: 0, count: BLOCK_TOKENS, tables: [[block]] }));
    this.attendPaged(rows, [], this.random(blocks * BLOCK_TOKENS, 100));
  }

  /** Of numbers up to `size`, for each layer. */
  random(tokens: number, size = 1): Fed[] {
    const numbers = (count: number) =>
      Array.from({ length: count }, () => (this.#random.below(2001) / 1000 - 1) * size);
    return Array.from({ length: LAYERS }, () => ({
      q: numbers(tokens * HEADS * HEAD_DIM),
      k: numbers(tokens * KV_HEADS * HEAD_DIM),
      v: numbers(tokens * KV_HEADS * HEAD_DIM),
    }));
  }

  sequence(): Twin {
    const twin: Twin = {
      kv: new ContiguousKv(),
      table: [],
      length: 0,
      fed: Array.from({ length: LAYERS }, () => ({ k: [], v: [] })),
    };
    this.#twins.push(twin);
    return twin;
  }

  /** Another that has the tokens of this one, and no blocks yet. */
  copyOf({ length, fed }: Twin): Twin {
    const copy = this.sequence();
    using _ = new Scope();
    fed.forEach(({ k, v }, layer) => {
      const part = (numbers: number[]) => swapAxes(this.#array(numbers, KV_HEADS), 0, 1);
      copy.kv.append(layer, part(k), part(v));
      copy.fed[layer] = { k: [...k], v: [...v] };
    });
    copy.kv.length = length;
    copy.length = length;
    return copy;
  }

  /** Feeds random tokens to both; by how much the outputs differ. */
  step(
    rows: readonly TwinRow[],
    options: AttentionOptions = plain,
    copies: readonly BlockCopy[] = [],
  ): number {
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    return this.feed(rows, this.random(tokens), options, copies);
  }

  feed(
    rows: readonly TwinRow[],
    fed: readonly Fed[],
    options: AttentionOptions = plain,
    copies: readonly BlockCopy[] = [],
  ): number {
    for (const { twin, count } of rows) this.#grow(twin, twin.length + count);
    const paged = this.attendPaged(
      rows.map(({ twin, count }) => ({ start: twin.length, count, tables: [twin.table] })),
      copies,
      fed,
      options,
    );
    const expected = this.#attendPlain(rows, fed, options);
    this.#note(rows, fed);
    return Math.max(...paged.map((value, i) => Math.abs(value - expected[i]!)));
  }

  /** What the paged store alone gives. */
  attendPaged(
    rows: Parameters<StateStore["begin"]>[0],
    copies: readonly BlockCopy[],
    fed: readonly Fed[],
    options: AttentionOptions = plain,
  ): number[] {
    using _ = new Scope();
    if (copies.length > 0) evaluate(this.store.copy(copies, undefined));
    const step = this.store.begin(rows);
    const outputs = this.#attend(step, fed, options);
    evaluate(...outputs);
    return outputs.flatMap((output) => output.numbers());
  }

  close(): void {
    this.store.free();
    for (const { kv } of this.#twins) kv.free();
  }

  #attendPlain(rows: readonly TwinRow[], fed: readonly Fed[], options: AttentionOptions): number[] {
    using _ = new Scope();
    const step = contiguousStep(rows.map(({ twin: { kv }, count }) => ({ kv, count })));
    return this.#attend(step, fed, options).flatMap((output) => output.numbers());
  }

  #attend(step: Step, fed: readonly Fed[], options: AttentionOptions): MlxArray[] {
    return fed.map((each, layer) => {
      const [k, v] = [this.#array(each.k, KV_HEADS), this.#array(each.v, KV_HEADS)];
      const q = this.#array(each.q, HEADS);
      const qkv = reshape(concatenate([q, k, v], 1), [q.shape[0]!, -1]);
      const heads = { heads: HEADS, kvHeads: KV_HEADS, headDim: HEAD_DIM };
      return step.attend(states[layer]!, qkv, heads, options);
    });
  }

  #array(numbers: readonly number[], heads: number): MlxArray {
    return array(numbers, [numbers.length / heads / HEAD_DIM, heads, HEAD_DIM], this.#dtype);
  }

  #grow(twin: Twin, length: number): void {
    const missing = Math.ceil(length / BLOCK_TOKENS) - twin.table.length;
    if (missing > this.free.length) throw new Error("the test has no block left");
    twin.table.push(...this.free.splice(0, Math.max(missing, 0)));
  }

  #note(rows: readonly TwinRow[], fed: readonly Fed[]): void {
    let at = 0;
    const width = KV_HEADS * HEAD_DIM;
    for (const { twin, count } of rows) {
      fed.forEach(({ k, v }, layer) => {
        twin.fed[layer]!.k.push(...k.slice(at * width, (at + count) * width));
        twin.fed[layer]!.v.push(...v.slice(at * width, (at + count) * width));
      });
      twin.length += count;
      at += count;
    }
  }
}

function shuffled<T>(items: readonly T[]): T[] {
  const random = makeRandom(3);
  const keyed = items.map((item) => ({ item, key: random.below(1e9) }));
  return keyed.toSorted((a, b) => a.key - b.key).map(({ item }) => item);
}

const benches: Bench[] = [];
afterEach(() => {
  for (const bench of benches.splice(0)) bench.close();
});

// The last attends with prompts by MLX's attention, over blocks that are gathered.
for (const name of ["cpu", "plain", "gathering"] as const) {
  // Plain arithmetic has float32 alone.
  const testOfCpu: typeof test = name === "cpu" ? test : ((() => {}) as unknown as typeof test);
  const setUp = (blocks?: number, dtype?: Dtype) => {
    const bench = new Bench(name, blocks, dtype);
    benches.push(bench);
    return bench;
  };

  /** Sequences of these lengths, each computed in one chunk. */
  const filled = (bench: Bench, lengths: readonly number[], options = plain) =>
    lengths.map((count) => {
      const twin = bench.sequence();
      expect(bench.step([{ twin, count }], options)).toBeLessThan(TOLERANCE);
      return twin;
    });

  const decode = (twins: readonly Twin[]) => twins.map((twin) => ({ twin, count: 1 }));

  describe(`the ${name} store gives what the plain one gives`, () => {
    test("for a prompt in one chunk", () => {
      const bench = setUp();
      for (const count of [1, 2, 31, 32, 33, 64, 130]) {
        expect(bench.step([{ twin: bench.sequence(), count }])).toBeLessThan(TOLERANCE);
      }
    });

    test("for a prompt in several chunks, which end inside blocks and at their edges", () => {
      const bench = setUp();
      const twin = bench.sequence();
      for (const count of [5, 27, 1, 40, 23, 32, 2]) {
        expect(bench.step([{ twin, count }])).toBeLessThan(TOLERANCE);
      }
      expect(twin.length).toBe(130);
    });

    test("for a sequence that decodes from its first token on", () => {
      const bench = setUp();
      const twin = bench.sequence();
      for (let i = 0; i < 70; i++) expect(bench.step(decode([twin]))).toBeLessThan(TOLERANCE);
    });

    test("for sequences of all lengths that decode in one step", () => {
      const bench = setUp(60);
      const lengths = [1, 5, 31, 32, 33, 63, 64, 96, 127, 130, 161, 200, 257];
      const twins = filled(bench, lengths);
      for (let i = 0; i < 3; i++) expect(bench.step(decode(twins))).toBeLessThan(TOLERANCE);
    });

    test("for rows in another order at each step", () => {
      const bench = setUp();
      const twins = filled(bench, [200, 1, 130, 33, 32, 64]);
      expect(bench.step(decode(twins))).toBeLessThan(TOLERANCE);
      expect(bench.step(decode(twins.toReversed()))).toBeLessThan(TOLERANCE);
      expect(bench.step(decode(shuffled(twins)))).toBeLessThan(TOLERANCE);
    });

    test("for prompts and decoding rows in one step, whichever comes first", () => {
      const bench = setUp(60);
      const twins = filled(bench, [40, 3, 130, 64]);
      const [a, b] = [bench.sequence(), bench.sequence()];
      const first = [...decode(twins), { twin: a, count: 50 }, { twin: b, count: 1 }];
      expect(bench.step(first)).toBeLessThan(TOLERANCE);
      const second = [{ twin: a, count: 20 }, ...decode(twins), { twin: b, count: 37 }];
      expect(bench.step(second)).toBeLessThan(TOLERANCE);
      expect(bench.step(decode([...twins, a, b]))).toBeLessThan(TOLERANCE);
    });
  });

  describe(`the ${name} store attends with`, () => {
    const combinations: {
      title: string;
      window?: number;
      chunked?: boolean;
      sinks?: boolean;
      softcap?: number;
    }[] = [
      { title: "a window smaller than a block", window: 7 },
      { title: "a window of a block", window: 32 },
      { title: "a window of more than a block", window: 45 },
      { title: "a window of one", window: 1 },
      { title: "chunks smaller than a block", window: 7, chunked: true },
      { title: "chunks of a block", window: 32, chunked: true },
      { title: "chunks of more than a block", window: 45, chunked: true },
      { title: "sinks", sinks: true },
      { title: "a softcap", softcap: 0.5 },
      { title: "a window and sinks", window: 40, sinks: true },
      { title: "a window and a softcap", window: 20, softcap: 0.5 },
    ];
    for (const { title, window, chunked: isChunked, sinks, softcap } of combinations) {
      test(title, () => {
        const bench = setUp();
        const scores = sinks ? sinkScores() : undefined;
        const options = { ...plain, window, chunked: isChunked, sinks: scores, softcap };
        const twins = filled(bench, [3, 33, 64, 140], options);
        const chunked = bench.sequence();
        for (const count of [30, 25, 10]) {
          const rows = [...decode(twins), { twin: chunked, count }];
          expect(bench.step(rows, options)).toBeLessThan(TOLERANCE);
        }
        // It does matter: without the options the outputs are others.
        expect(bench.step(decode(twins), options)).toBeLessThan(TOLERANCE);
        expect(differenceOf(bench, twins[3]!, options)).toBeGreaterThan(1e-3);
        scores?.free();
      });
    }

    test("a softcap and sinks, which the plain store has not together", () => {
      const bench = setUp();
      const sinks = sinkScores();
      const twin = bench.sequence();
      bench.step([{ twin, count: 40 }]);
      const fed = bench.random(1);
      const options = { ...plain, window: 20, sinks, softcap: 0.5 };
      const rows = [{ start: 40, count: 1, tables: [[...twin.table]] }];
      const found = bench.attendPaged(rows, [], fed, options);
      const expected = fed.flatMap((each, layer) =>
        attendOne(each, twin.fed[layer]!, sinks.numbers(), { ...options, window: 20 }),
      );
      const errors = found.map((value, i) => Math.abs(value - expected[i]!));
      expect(found).toHaveLength(expected.length);
      expect(Math.max(...errors)).toBeLessThan(TOLERANCE);
      sinks.free();
    });
  });

  describe(`blocks of the ${name} store`, () => {
    test("are copied before the step writes to them", () => {
      const bench = setUp();
      const [original] = filled(bench, [40]) as [Twin];
      const fork = bench.copyOf(original);
      const [to] = bench.free.splice(0, 1) as [number];
      fork.table = [original.table[0]!, to];
      const copies = [{ group: 0, from: original.table[1]!, to }];
      expect(bench.step(decode([original, fork]), plain, copies)).toBeLessThan(TOLERANCE);
      for (let i = 0; i < 3; i++) {
        expect(bench.step(decode([fork, original]))).toBeLessThan(TOLERANCE);
      }
    });

    test("are copied for several rows at once, one block to two others among them", () => {
      const bench = setUp();
      const [a, b] = filled(bench, [40, 70]) as [Twin, Twin];
      const forks = [a, a, b].map((twin) => {
        const fork = bench.copyOf(twin);
        const to = bench.free.splice(0, 1)[0]!;
        fork.table = [...twin.table.slice(0, -1), to];
        return { fork, copy: { group: 0, from: twin.table.at(-1)!, to } };
      });
      const all = [a, b, ...forks.map(({ fork }) => fork)];
      const copies = forks.map(({ copy }) => copy);
      expect(bench.step(decode(all), plain, copies)).toBeLessThan(TOLERANCE);
      expect(bench.step(decode(all))).toBeLessThan(TOLERANCE);
    });

    test("that are not copied are another's: the difference is seen", () => {
      const bench = setUp();
      const [original] = filled(bench, [40]) as [Twin];
      const fork = bench.copyOf(original);
      fork.table = [original.table[0]!, ...bench.free.splice(0, 1)];
      expect(bench.step(decode([fork]))).toBeGreaterThan(1e-2);
    });

    test("that stand wrongly in a table give another result", () => {
      const bench = setUp();
      const [twin, other] = filled(bench, [70, 70]) as [Twin, Twin];
      expect(bench.step(decode([twin, other]))).toBeLessThan(TOLERANCE);
      twin.table[1] = other.table[1]!;
      expect(bench.step(decode([twin, other]))).toBeGreaterThan(1e-2);
    });

    test("that held no numbers spoil nobody who gets them next", () => {
      const bench = setUp(4);
      const spoil = (value: number) => {
        const fed = bench.random(4 * BLOCK_TOKENS);
        for (const { k, v } of fed) {
          k.fill(value);
          v.fill(value);
        }
        const row = { start: 0, count: 4 * BLOCK_TOKENS, tables: [[0, 1, 2, 3]] };
        const output = bench.attendPaged([row], [], fed);
        // Who computed them gets none either.
        expect(output.every(Number.isNaN)).toBe(true);
      };
      for (const value of [Number.NaN, Infinity]) {
        spoil(value);
        const twin = bench.sequence();
        expect(bench.step([{ twin, count: 40 }])).toBeLessThan(TOLERANCE);
        expect(bench.step(decode([twin]))).toBeLessThan(TOLERANCE);
        bench.free.push(...twin.table);
      }
    });

    testOfCpu("hold numbers of 16 bits", () => {
      // Rounded to 8 bits of mantissa, sums of numbers up to 1 are this far off.
      for (const dtype of ["float16", "bfloat16"] as const) {
        const bench = setUp(20, dtype);
        const [twin] = [bench.sequence()];
        for (const count of [33, 40, 1, 1]) {
          expect(bench.step([{ twin, count }])).toBeLessThan(0.02);
        }
      }
    });

    testOfCpu("take as many bytes as they say, one block more, and 32 bits a number", () => {
      const bytes = 2 * LAYERS * KV_HEADS * HEAD_DIM * BLOCK_TOKENS * 4;
      expect(setUp(3).store.bytes).toBe(4 * bytes);
      expect(setUp(3, "float16").store.bytes).toBe(4 * bytes);
    });
  });

  describe(`a step of the ${name} store`, () => {
    test("overwrites what stood in its places: the difference is seen", () => {
      const bench = setUp();
      const [a] = filled(bench, [40]) as [Twin];
      bench.attendPaged([{ start: 0, count: 33, tables: [[...a.table]] }], [], bench.random(33));
      expect(bench.step(decode([a]))).toBeGreaterThan(1e-2);
    });

    testOfCpu("that is not evaluated frees what it held", () => {
      const { store } = setUp();
      const before = liveArrays();
      const rows = [{ start: 0, count: 2, tables: [[1]] }];
      {
        using _ = new Scope();
        evaluate(store.copy([{ group: 0, from: 1, to: 2 }], undefined));
        const step = store.begin(rows);
        const heads = { heads: HEADS, kvHeads: KV_HEADS, headDim: HEAD_DIM };
        step.attend(states[0]!, array(Array(128).fill(1), [2, 64]), heads, plain);
      }
      expect(liveArrays()).toBeLessThanOrEqual(before + 1); // the layer's numbers, once
    });

    test("and the store itself leave no array behind", () => {
      const before = liveArrays();
      const bench = new Bench(name, 6);
      const twin = bench.sequence();
      for (const count of [40, 1, 1]) bench.step([{ twin, count }]);
      expect(liveArrays()).toBeGreaterThan(before);
      bench.close();
      expect(liveArrays()).toBe(before);
    });
  });

  describe(`a runner over the ${name} store`, () => {
    testOfCpu("whose model fails keeps nothing of the step, and computes the next", () => {
      const { device, store, free } = setUp(4);
      const model = tinyModel();
      const runner = new Runner(device, model, store);
      const table = free.slice(0, 1);
      const row = { sampling: { temperature: 0, seed: 0 }, index: 0 };
      const run = (tokens: number[], start: number) =>
        runner
          .launch({
            tokens: Uint32Array.from(tokens),
            rows: [{ start, count: tokens.length, tables: [table] }],
            copies: [],
            samples: [{ at: tokens.length - 1, row }],
            scores: [],
            sums: [],
          })
          .read().sampled;
      const [first] = run([1, 2, 3], 0);
      const [expected] = run([4], 3);
      const before = liveArrays();
      model.fails = true;
      expect(() => run([9, 9, 9], 0)).toThrow("on purpose");
      expect(liveArrays()).toBeLessThanOrEqual(before);
      model.fails = false;
      expect(run([4], 3)).toEqual([expected!]);
      expect(first!.token).toBeNumber();
      expect(runner.forwards).toBe(4);
      runner.free();
    });
  });
}

/** Fixed scores, one a head; the caller frees them. */
function sinkScores(): MlxArray {
  using _ = new Scope();
  return hold(array([0.5, -1, 2, 0.1]));
}

/** How far the store's own output is from its output without any options. */
function differenceOf(bench: Bench, { table, length }: Twin, options: AttentionOptions): number {
  const fed = bench.random(1);
  const rows = [{ start: length, count: 1, tables: [[...table]] }];
  const [some, none] = [options, plain].map((each) => bench.attendPaged(rows, [], fed, each)) as [
    number[],
    number[],
  ];
  return Math.max(...some.map((value, i) => Math.abs(value - none[i]!)));
}

/** Attention of one token after `past`, by its definition: heads * D numbers. */
function attendOne(
  { q, k, v }: Fed,
  past: { k: number[]; v: number[] },
  sinks: number[],
  { scale, softcap, window }: { scale: number; softcap: number; window: number },
): number[] {
  const [keys, values] = [
    [...past.k, ...k],
    [...past.v, ...v],
  ];
  const tokens = keys.length / KV_HEADS / HEAD_DIM;
  const seen = Array.from({ length: window }, (_, i) => tokens - window + i);
  return Array.from({ length: HEADS }, (_, head) => head).flatMap((head) => {
    const kvHead = Math.floor(head / (HEADS / KV_HEADS));
    const at = (token: number, i: number) => (token * KV_HEADS + kvHead) * HEAD_DIM + i;
    const dims = Array.from({ length: HEAD_DIM }, (_, i) => i);
    const weights = seen.map((token) => {
      const raw = dims.reduce((sum, i) => sum + q[head * HEAD_DIM + i]! * keys[at(token, i)]!, 0);
      return Math.exp(softcap * Math.tanh((raw * scale) / softcap));
    });
    const all = weights.reduce((a, b) => a + b, Math.exp(sinks[head]!));
    return dims.map(
      (i) => seen.reduce((sum, token, j) => sum + weights[j]! * values[at(token, i)]!, 0) / all,
    );
  });
}

/** One layer of attention over a table of numbers, that fails after it attended when it is told to. */
function tinyModel(): Model & { fails: boolean } {
  const numbers = Array.from({ length: 16 * 32 }, (_, i) => Math.sin(i * 1.7));
  const model = {
    shape,
    states: layerStates,
    fails: false,
    forward(tokens: MlxArray, step: Step): MlxArray {
      const q = take(array(numbers, [16, HEADS, HEAD_DIM]), tokens);
      const k = take(array(numbers.slice(256), [16, KV_HEADS, HEAD_DIM]), tokens);
      const tokensOf = (x: MlxArray) => reshape(x, [tokens.shape[0]!, -1]);
      const qkv = concatenate([q, k, k].map(tokensOf), -1);
      const heads = { heads: HEADS, kvHeads: KV_HEADS, headDim: HEAD_DIM };
      const hidden = step.attend(states[0]!, qkv, heads, plain);
      if (model.fails) throw new Error("on purpose");
      return hidden;
    },
    logits: (hidden: MlxArray) => take(reshape(hidden, [hidden.shape[0]!, -1]), first16(), 1),
  };
  const first16 = () => array(Int32Array.from({ length: 16 }, (_, i) => i));
  return model;
}
