// The runner as on a GPU, with plain arithmetic in the place of the kernels.
import { afterAll, beforeAll, expect, spyOn, test } from "bun:test";
import { mlxc } from "../../../ffi/lib.ts";
import type { Device } from "../../../src/device/device.ts";
import type { LatentAttention } from "../../../src/kernels/attention/latent-attention.ts";
import type { BlockAttention } from "../../../src/kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../../src/kv/blocks.ts";
import { NONE } from "../../../src/kv/kv-cache.ts";
import { liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import { zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { BegunLayers } from "../../../src/model/contract/begun-layers.ts";
import { groupsOf } from "../../../src/model/contract/states.ts";
import type { LoadedModel } from "../../../src/model/load.ts";
import { Runner } from "../../../src/model/run/runner.ts";
import type { SampleRow } from "../../../src/model/run/sampler.ts";
import type { StepInputs } from "../../../src/model/run/step.ts";
import { StateStore } from "../../../src/model/state/state-store.ts";
import { PlainAttention } from "../../../src/self-test/plain-attention.ts";
import { PlainLatentAttention } from "../../../src/self-test/plain-latent-attention.ts";
import { deepened } from "../../support/deeper-model.ts";
import { deviceOf, plainGpu } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { TiledAttention } from "../../support/tiled-attention.ts";
import { loadTinyModel, tinyCase } from "../../support/tiny-models.ts";

let model: LoadedModel;
afterAll(() => model.free());
useMlx();
beforeAll(() => {
  model = loadTinyModel(tinyCase("llama"), { device: deviceOf("cpu") });
});

/** A runner of the model with so many blocks, freed at the end of the scope. */
function runnerOn(device: Device, blocks: number) {
  const store = new StateStore(device, model.states, { groups: [{ blocks }] }, model.dtype);
  const runner = new Runner(device, model, store);
  const free = () => {
    runner.free();
    store.free();
  };
  return Object.assign(runner, { [Symbol.dispose]: free });
}

const nothingElse = { copies: [], scores: [], sums: [] };

/** How many rows are decoded, in how many parts, and the blocks that they read and write. */
class Watched extends PlainAttention {
  readonly decoded: string[] = [];
  readonly blocks = new Set<number>();

  override decode(...args: Parameters<BlockAttention["decode"]>): MlxArray {
    const [qkv, pools, tables, work, splits = 1] = args;
    this.decoded.push(`${qkv.shape[0]} rows in ${splits}`);
    const [width, ...rows] = tables.numbers() as [number, ...number[]];
    for (let at = 0; at < rows.length; at += 1 + width) {
      const used = Math.ceil(rows[at]! / BLOCK_TOKENS);
      for (const block of rows.slice(at + 1, at + 1 + used)) this.blocks.add(block);
    }
    return super.decode(qkv, pools, tables, work);
  }
}

test("warming up runs each batch size with every number of splits, on no block of the pool", () => {
  const attention = new Watched(model.states.kvs[0]!);
  const device = { ...plainGpu(), attention: () => attention };
  using runner = runnerOn(device, 4);
  const told: number[][] = [];
  runner.warmUp(3, 2048, (...progress) => told.push(progress));
  const layers = model.states.kvs.length;
  expect(model.states.kvs[0]!.kvHeads).toBe(2);
  const ways = [1, 2, 3].flatMap((rows) => [1, 2, 4, 8].map((parts) => `${rows} rows in ${parts}`));
  const counts = ways.map((way) => attention.decoded.filter((each) => each === way).length);
  expect(counts).toEqual(ways.map(() => 2 * layers));
  expect(attention.decoded).toHaveLength(ways.length * 2 * layers);
  expect([...attention.blocks]).toEqual([4]);
  // Two steps with prompts, and each way twice.
  const total = 2 + 2 * ways.length;
  expect(told).toEqual(Array.from({ length: total + 1 }, (_, done) => [done, total]));
});

/** Launches a step of these rows, one token each. */
function decodeWith(runner: Runner, rows: readonly SampleRow[]) {
  const tokens = Uint32Array.from(rows, (_, i) => 10 + i);
  const samples = rows.map((row, at) => ({ at, row }));
  const all = rows.map((_, i) => ({ start: 0, count: 1, tables: [[i]] }));
  return runner.launch({ tokens, rows: all, samples, ...nothingElse });
}

const greedy: SampleRow = { sampling: { temperature: 0, seed: 1 }, index: 0 };

test("a sampled row leaves the others with the argmax that the traced step has computed", () => {
  const gpu = plainGpu();
  const counted: number[] = [];
  const device: Device = {
    ...gpu,
    best: (x) => {
      counted.push(x.shape[0]!);
      return gpu.best(x);
    },
  };
  using runner = runnerOn(device, 8);
  const rows = Array.from({ length: 8 }, () => greedy);
  const expected = decodeWith(runner, rows).read().sampled;
  expect(counted.splice(0)).toEqual([8]);
  const hot: SampleRow = { sampling: { temperature: 1, seed: 7 }, index: 0 };
  const { sampled } = decodeWith(runner, rows.with(3, hot)).read();
  // One argmax over the batch, and one over the row that is drawn.
  expect(counted).toEqual([8, 1]);
  expect(sampled.with(3, expected[3]!)).toEqual(expected);
});

test("rows without a grammar are drawn at once, and a late mask leaves its own row undrawn", () => {
  const words = Math.ceil(model.shape.vocabulary / 32);
  const masked: SampleRow = { ...greedy, looksBack: true };
  const only = new Uint32Array(words);
  only[2] = 1 << 5;
  using runner = runnerOn(plainGpu(), 4);
  const launched = decodeWith(runner, [greedy, masked, greedy, masked]);
  launched.draw([{ mask: "late" }, { mask: only }]);
  const { sampled } = launched.read();
  expect(sampled.map(({ token, isLate }) => [typeof token, isLate ?? false])).toEqual([
    ["number", false],
    ["undefined", true],
    ["number", false],
    ["number", false],
  ]);
  expect(sampled[3]!.token).toBe(2 * 32 + 5);
});

test("rows of one token with a fork of one row beside a chunk of another prompt are no decode step", () => {
  using runner = runnerOn(deviceOf("cpu"), 2);
  const drawnAt = (...places: readonly number[]) => {
    const tokens = Uint32Array.of(10, 11);
    const rows = [0, 1].map((block) => ({ start: 0, count: 1, tables: [[block]] }));
    const samples = places.map((at) => ({ at, row: greedy }));
    const { sampled } = runner.launch({ tokens, rows, samples, ...nothingElse }).read();
    return sampled.map(({ token }) => token!);
  };
  const [first, second] = drawnAt(0, 1);
  expect(first).not.toBe(second!);
  expect(drawnAt(0, 0)).toEqual([first!, first!]);
  expect(drawnAt(1, 0)).toEqual([second!, first!]);
});

test("a step that samples nothing is complete when it has been read", () => {
  using runner = runnerOn(deviceOf("cpu"), 1);
  const rows = [{ start: 0, count: 8, tables: [[0]] }];
  const tokens = Uint32Array.from({ length: 8 }, (_, i) => i);
  const step = runner.launch({ tokens, rows, samples: [], ...nothingElse });
  const waits = spyOn(mlxc, "mlx_eval");
  step.read();
  expect(waits).toHaveBeenCalledTimes(1);
  waits.mockRestore();
});

/**
 * How many tokens each launch of attention has, of the step of these counts of tokens that samples the last of each, and
 * whether no other's queries are made for it.
 */
function attendedTokens(counts: readonly number[], asked: Partial<StepInputs> = {}) {
  const attended: number[] = [];
  const onlyLast: boolean[] = [];
  class Counted extends PlainAttention {
    override prepare(...args: Parameters<PlainAttention["prepare"]>): MlxArray {
      onlyLast.push(args[4] ?? false);
      return super.prepare(...args);
    }
    override attend(...args: Parameters<BlockAttention["attend"]>): MlxArray {
      attended.push(args[0].shape[0]!);
      return super.attend(...args);
    }
  }
  const device = { ...plainGpu(), attention: () => new Counted(model.states.kvs[0]!) };
  using runner = runnerOn(device, counts.length);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const lasts = counts.map((_, i) => counts.slice(0, i + 1).reduce((sum, n) => sum + n, 0) - 1);
  const { sampled } = runner
    .launch({
      tokens: Uint32Array.from({ length: total }, (_, i) => i),
      rows: counts.map((count, i) => ({ start: 0, count, tables: [[i]] })),
      samples: lasts.map((at) => ({ at, row: greedy })),
      ...nothingElse,
      ...asked,
    })
    .read();
  return { attended, onlyLast, tokens: sampled.map(({ token }) => token) };
}

test("the last layer attends and computes for no token but those that something is asked of", () => {
  const before = Array(model.shape.layers - 1).fill(14);
  const few = attendedTokens([9, 5]);
  expect(few.attended).toEqual([...before, 2]);
  const earlier = before.map(() => false);
  expect(few.onlyLast).toEqual([...earlier, true]);
  expect(attendedTokens([9, 5], { samples: [] }).attended).toEqual([...before, 1]);
  const all = attendedTokens([9, 5], { sums: [{ from: 0, to: 14 }] });
  expect(all.attended).toEqual([...before, 14]);
  expect(all.onlyLast).toEqual([...earlier, false]);
  expect(few.tokens).toEqual(all.tokens);
});

test("a step that takes the device long begins while its layers are built, a few ahead of what is computed", () => {
  const cpu = { device: deviceOf("cpu") };
  const deep = loadTinyModel(deepened(tinyCase("llama"), 12, cpu), cpu);
  const before = liveArrays();
  const eventsOf = (isLong: boolean) => {
    using spies = new DisposableStack();
    const events: string[] = [];
    const live: number[] = [];
    /** The plain attention reads what it is given. */
    const untold = <T>(compute: () => T): T => {
      const told = events.length;
      const made = compute();
      events.length = told;
      return made;
    };
    class Told extends PlainAttention {
      override prepare(...args: Parameters<PlainAttention["prepare"]>): MlxArray {
        return untold(() => super.prepare(...args));
      }
      override attend(...args: Parameters<BlockAttention["attend"]>): MlxArray {
        const attended = untold(() => super.attend(...args));
        events.push("built");
        return attended;
      }
    }
    const device: Device = {
      ...plainGpu(),
      attention: () => new Told(deep.states.kvs[0]!),
      beginsEarly: (tokens, weightBytes) => {
        events.push(`${tokens} tokens, ${weightBytes} bytes`);
        return isLong;
      },
    };
    const layout = { groups: [{ blocks: 2 }] };
    const store = new StateStore(device, deep.states, layout, deep.dtype);
    const runner = new Runner(device, deep, store, undefined, { weightBytes: 77 });
    const tokens = Uint32Array.from({ length: 9 }, (_, i) => i);
    const samples = [{ at: 8, row: greedy }];
    const launch = (block: number, landOthers?: () => void) => {
      const rows = [{ start: 0, count: 9, tables: [[block]] }];
      const inputs = { tokens, rows, samples, ...nothingElse };
      [events.length, live.length] = [0, 0];
      const step = runner.launch(inputs, landOthers);
      return { step, events: [...events], live: [...live] };
    };
    const [begin, wait] = [mlxc.mlx_async_eval, mlxc.mlx_array_eval];
    const begins = spyOn(mlxc, "mlx_async_eval").mockImplementation((arrays) => {
      events.push("begun");
      live.push(liveArrays());
      return begin(arrays);
    });
    const waits = spyOn(mlxc, "mlx_array_eval").mockImplementation((array) => {
      events.push("waited");
      return wait(array);
    });
    spies.defer(() => begins.mockRestore());
    spies.defer(() => waits.mockRestore());
    const tokenOf = ({ step }: ReturnType<typeof launch>) => step.read().sampled[0]!.token;
    const alone = launch(0);
    const drawn: unknown[] = [];
    const behind = launch(1, () => {
      events.push("others");
      if (drawn.length === 0) drawn.push(untold(() => tokenOf(alone)));
    });
    if (drawn.length === 0) drawn.push(tokenOf(alone));
    drawn.push(tokenOf(behind));
    runner.free();
    store.free();
    return { alone, behind, drawn };
  };
  const [long, short] = [eventsOf(true), eventsOf(false)];
  const [asked, built, begun] = ["9 tokens, 77 bytes", "built", "begun"];
  const two = [built, built, begun];
  // The first layer's queries, that layer, and the second.
  const ahead = [asked, begun, built, begun, built, begun];
  const ended = [built, built, begun];
  const times = (...groups: readonly string[]) => Array(4).fill(groups).flat();
  expect(long.alone.events).toEqual([...ahead, ...times(...two, "waited"), ...ended]);
  expect(long.behind.events).toEqual([...ahead, ...times(...two, "others", "waited"), ...ended]);
  const whole = [asked, ...Array(12).fill(built), begun];
  expect(short.alone.events).toEqual(whole);
  expect(short.behind.events).toEqual(whole);
  // What layers have made is given back while those behind them are built.
  for (const { live } of [long.alone, long.behind]) expect(live.at(-2)).toBe(live.at(-3)!);
  expect(long.drawn).toEqual(short.drawn);
  expect(liveArrays()).toBe(before);
  deep.free();
});

test("of layers that are built as ever, nothing begins early but the queries of the first", () => {
  using _ = new Scope();
  const begins = spyOn(mlxc, "mlx_async_eval");
  using begun = new BegunLayers();
  for (let layer = 0; layer < 3; layer++) begun.start(zeros([8]));
  expect(begins).toHaveBeenCalledTimes(1);
  begins.mockRestore();
});

/** Of the tiles it makes sure that they are there. */
class TiledLatents extends PlainLatentAttention {
  readonly tile = { most: 5, perToken: 1 };

  override attend(...args: Parameters<LatentAttention["attend"]>): MlxArray {
    const [rows, pool, tables, places, work, tiles] = args;
    expect(tiles!.numbers().slice(0, 2)).toEqual([35, 5]);
    return super.attend(rows, pool, tables, places, work);
  }
}

test.each(["llama", "deepseek_v3", "qwen3_next"])(
  "what a step makes for all its layers outlives the first of them, %s",
  (name) => {
    const cpu = { device: deviceOf("cpu") };
    const deep = loadTinyModel(deepened(tinyCase(name), 6, cpu), cpu);
    const groups = groupsOf(deep.states).map(({ window }) => ({ blocks: 2, window }));
    const slots = deep.states.slots.length > 0 ? 1 : undefined;
    const draw = (beginsEarly: boolean) => {
      const device: Device = {
        ...plainGpu(),
        beginsEarly: () => beginsEarly,
        latentAttention: (shape) => new TiledLatents(shape),
      };
      const store = new StateStore(device, deep.states, { groups, slots }, deep.dtype);
      const runner = new Runner(device, deep, store);
      const tables = groups.map(() => [0, 1]);
      const { sampled } = runner
        .launch({
          tokens: Uint32Array.from({ length: 40 }, (_, i) => i),
          rows: [{ start: 0, count: 40, tables, move: { from: NONE, to: 0 } }],
          samples: [{ at: 39, row: greedy }],
          ...nothingElse,
        })
        .read();
      runner.free();
      store.free();
      return sampled[0]!.token;
    };
    expect(draw(true)).toBe(draw(false)!);
    deep.free();
  },
);

test("a step with prompts that is recorded is told whether streams wait for it, and one that decodes is not", () => {
  const calls: string[] = [];
  const device: Device = {
    ...plainGpu(),
    attention: (shape) => new TiledAttention(shape),
    paddedTokens: () => 64,
    trace: (build) => {
      const called =
        (kind: string) =>
        (...inputs: readonly MlxArray[]) => {
          calls.push(`${kind} ${inputs[0]!.size}`);
          return [...build([...inputs])];
        };
      return { call: called("call"), callBeside: called("beside"), free() {} };
    },
  };
  using runner = runnerOn(device, 3);
  const runStep = (...counts: readonly number[]) => {
    const tokens = new Uint32Array(counts.reduce((sum, count) => sum + count));
    const rows = counts.map((count, i) => ({ start: 0, count, tables: [[i]] }));
    const samples = counts.map((_, at) => ({ at, row: greedy }));
    runner.launch({ tokens, rows, samples, ...nothingElse }).read();
  };
  runStep(20, 9);
  runStep(1, 20, 9);
  runStep(1, 1);
  expect(calls).toEqual(["call 64", "beside 64", "call 2"]);
  // More answers to one prompt than padded rows.
  const samples = Array.from({ length: 9 }, () => ({ at: 19, row: greedy }));
  const rows = [{ start: 0, count: 20, tables: [[0]] }];
  const tokens = new Uint32Array(20);
  const { sampled } = runner.launch({ tokens, rows, samples, ...nothingElse }).read();
  expect(new Set(sampled.map(({ token }) => token)).size).toBe(1);
});
