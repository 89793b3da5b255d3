// Whatever the scheduler does to a request, its tokens are those it gets alone.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Device } from "../../src/device/device.ts";
import type { EngineRequest, Sampling } from "../../src/engine/protocol.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { deepened } from "../support/deeper-model.ts";
import { deviceOf, plainGpu } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import {
  aloneOf,
  expectSame,
  features,
  prompts,
  runCrowd,
  type Seen,
  samplings,
  watchOf,
} from "../support/parity.ts";
import { TiledAttention } from "../support/tiled-attention.ts";
import { loadTinyModel, tinyCase } from "../support/tiny-models.ts";

let model: LoadedModel;
let alone: ReturnType<typeof aloneOf>;
afterAll(() => model.free());
useMlx();
beforeAll(() => {
  const loaded = loadTinyModel(tinyCase("llama"), { device: deviceOf("cpu") });
  model = { ...loaded, shape: { ...loaded.shape, maxPositions: 2048 } };
  alone = aloneOf(model);
});

const request = (i: number, sampling: Sampling, n = 1): EngineRequest => ({
  prompt: prompts[i]!,
  maxTokens: 24,
  sampling,
  n,
});

describe.each(features)("$name", ({ options, n = 1, twice, happened }) => {
  test.each(Object.keys(samplings))(
    "changes nothing with %s",
    (name) => {
      const seen: Seen = { copies: 0, chunks: 0 };
      const engine = makeEngine(model, options, watchOf(seen));
      // A third of the prompts where each is answered three times.
      const indices = prompts.map((_, i) => i).filter((i) => i % n === 0);
      const requests = indices.map((i) => request(i, samplings[name]!, n));
      const first = runCrowd(engine, requests, 1);
      const answers = twice ? runCrowd(engine, requests, 2) : first;
      happened(engine, answers, seen);
      for (const [i, answer] of answers.entries()) {
        for (let index = 0; index < n; index++) {
          expectSame(answer[index]!, alone(requests[i]!, index));
        }
      }
      engine.free();
    },
    60_000,
  );
});

test("rows with all kinds of parameters share a batch and change nothing for each other", () => {
  const kinds = Object.values(samplings);
  const engine = makeEngine(model, { maxBatch: 24, blocks: 200 });
  const requests = prompts.map((_, i) => request(i, kinds[i % kinds.length]!));
  const answers = runCrowd(engine, requests, 3);
  for (const [i, [answer]] of answers.entries()) {
    expectSame(answer!, alone(requests[i]!));
  }
  engine.free();
});

test.each(["greedy", "penalties", "seed"])("steps that overlap give the same, %s", (name) => {
  const device = plainGpu();
  const engine = makeEngine(model, { maxBatch: 6, blocks: 12, tokenBudget: 32, device });
  const requests = prompts.slice(0, 12).map((_, i) => request(i, samplings[name]!, 2));
  const answers = runCrowd(engine, requests, 4);
  expect(engine.engine.scheduler.preemptions).toBeGreaterThan(0);
  for (const [i, answer] of answers.entries()) {
    for (const [j, each] of answer.entries()) expectSame(each, alone(requests[i]!, j));
  }
  engine.free();
});

test.each(["greedy", "seed"])(
  "steps that are padded, as recorded ones are, give the same, %s",
  (name) => {
    const sizes = new Set<number>();
    const device: Device = {
      ...plainGpu(),
      attention: (shape) => new TiledAttention(shape),
      paddedTokens: (tokens) => {
        const size = 48 * Math.ceil(tokens / 48);
        sizes.add(size);
        return size;
      },
    };
    // A prompt is longer than two steps: nothing is sampled in the first.
    const engine = makeEngine(model, { maxBatch: 6, blocks: 12, tokenBudget: 60, device });
    const requests = prompts.slice(0, 12).map((_, i) => request(i, samplings[name]!, 2));
    const answers = runCrowd(engine, requests, 4);
    expect(engine.engine.scheduler.preemptions).toBeGreaterThan(0);
    expect([...sizes].sort()).toEqual([48, 96]);
    for (const [i, answer] of answers.entries()) {
      for (const [j, each] of answer.entries()) expectSame(each, alone(requests[i]!, j));
    }
    engine.free();
  },
);

test.each(["greedy", "seed"])(
  "steps that begin while their last layers are not built give the same, %s",
  (name) => {
    const cpu = { device: deviceOf("cpu") };
    const deep = loadTinyModel(deepened(tinyCase("llama"), 7, cpu), cpu);
    const aloneDeep = aloneOf(deep);
    const lengths = new Set<number>();
    const beginsEarly = (tokens: number) => {
      lengths.add(tokens);
      return true;
    };
    const device: Device = { ...plainGpu(), beginsEarly };
    const engine = makeEngine(deep, { maxBatch: 6, blocks: 12, tokenBudget: 32, device });
    const requests = prompts.slice(0, 12).map((_, i) => request(i, samplings[name]!, 2));
    const answers = runCrowd(engine, requests, 4);
    expect(engine.engine.scheduler.preemptions).toBeGreaterThan(0);
    expect(lengths.size).toBeGreaterThan(3);
    expect(engine.landed.meanwhile).toBeGreaterThan(3);
    for (const [i, answer] of answers.entries()) {
      for (const [j, each] of answer.entries()) expectSame(each, aloneDeep(requests[i]!, j));
    }
    engine.free();
    deep.free();
  },
);

test("a step makes one forward, with a row for each request that runs", () => {
  const rows: number[] = [];
  const engine = makeEngine(model, { maxBatch: 8, blocks: 100 }, (inputs) => {
    rows.push(inputs.rows.length);
    return inputs;
  });
  for (let i = 0; i < 3; i++) engine.submit(request(i, samplings.greedy!));
  engine.run();
  expect(engine.runner.forwards).toBe(24);
  expect(rows).toEqual(Array(24).fill(3));
  engine.free();
});

test("a second prompt of 1,000 tokens finds 992 of them, and computes the rest only", () => {
  const computed: number[] = [];
  const engine = makeEngine(model, { blocks: 80, tokenBudget: 2048 }, (inputs) => {
    computed.push(inputs.tokens.length);
    return inputs;
  });
  const prompt = Uint32Array.from({ length: 1000 }, (_, i) => (i * 7) % 200);
  const ask = () => {
    const [answer] = engine.submit({ prompt, maxTokens: 2, sampling: samplings.greedy! });
    engine.run();
    return answer!;
  };
  const [first, second] = [ask(), ask()];
  expect([first.cachedTokens, second.cachedTokens]).toEqual([0, 992]);
  expect(computed.slice(-3)).toEqual([1, 8, 1]);
  expect(computed.slice(0, -3).reduce((sum, count) => sum + count)).toBe(1000);
  expect(second.tokens).toEqual(first.tokens);
  engine.free();
});

test("a block that is read in place of another is noticed by these tests", () => {
  const engine = makeEngine(model, { maxBatch: 4, blocks: 64 }, (inputs, step) => {
    if (step !== 6) return inputs;
    const [first, ...others] = inputs.rows;
    const wrong = [others[0]!.tables[0]![0]!, ...first!.tables[0]!.slice(1)];
    return { ...inputs, rows: [{ ...first!, tables: [wrong] }, ...others] };
  });
  const requests = [20, 21, 22].map((i) => request(i, samplings.greedy!));
  const answers = requests.map((each) => engine.submit(each)[0]!);
  engine.run();
  const right = requests.map((each) => alone(each).tokens);
  const different = answers.filter(({ tokens }, i) => tokens.join() !== right[i]!.join());
  expect(different.length).toBeGreaterThan(0);
  engine.free();
});
