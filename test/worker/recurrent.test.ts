// A hybrid model, with keys and values in some layers and recurrent states in the others, through the whole engine.
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Device } from "../../src/device/device.ts";
import type { EngineRequest } from "../../src/engine/protocol.ts";
import { evaluate } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { deviceOf, plainGpu } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";
import { goldenOf, loadTinyModel, tinyCase } from "../support/tiny-models.ts";

const tiny = tinyCase("qwen3_5");
let model: LoadedModel;
afterAll(() => model.free());
useMlx();
beforeAll(() => {
  const loaded = loadTinyModel(tiny, { device: deviceOf("cpu") });
  model = { ...loaded, shape: { ...loaded.shape, maxPositions: 8192 } };
});

const ask = (prompt: Uint32Array, more: Partial<EngineRequest> = {}): EngineRequest => ({
  prompt,
  maxTokens: 8,
  sampling: { temperature: 0 },
  ...more,
});

test("a step that is rehearsed before it is recorded changes nothing", () => {
  const { prompt, greedy } = goldenOf(tiny);
  let rehearsed = 0;
  const gpu = plainGpu();
  /** As CUDA's: what is called for the second time is computed several times first, with other inputs. */
  const trace: Device["trace"] = (build, rehearsal) => {
    let calls = 0;
    return {
      call: (...inputs) => {
        if (++calls === 2) {
          using _ = new Scope();
          for (let i = 0; i < 3; i++) evaluate(...build([...rehearsal()]));
          rehearsed += 1;
        }
        return [...build([...inputs])];
      },
      free() {},
    };
  };
  const engine = makeEngine(model, { device: { ...gpu, trace }, maxBatch: 4 });
  const request = ask(Uint32Array.from(prompt), { maxTokens: 24 });
  const answers = [...engine.submit(request), ...engine.submit({ ...request, n: 3 })];
  engine.run();
  for (const { tokens } of answers) expect(tokens).toEqual(greedy.slice(0, 24));
  expect(rehearsed).toBeGreaterThan(1);
  engine.free();
});

test("of 1,000 requests, half of them aborted, preempted or failed, all that end are as they are alone", () => {
  const random = makeRandom(36);
  const heads = [64, 96, 40].map((length) => Array.from({ length }, () => random.below(200)));
  const prompts = Array.from({ length: 60 }, () => {
    const tail = Array.from({ length: 1 + random.below(40) }, () => random.below(200));
    return Uint32Array.from([...heads[random.below(3)]!, ...tail]);
  });
  const lone = makeEngine(model, { maxBatch: 1, prefixCaching: false, blocks: 32 });
  const alone = prompts.map((prompt) => {
    const [answer] = lone.submit(ask(prompt));
    lone.run();
    return answer!.tokens;
  });
  lone.free();

  const options = { maxBatch: 8, blocks: 20, slots: 12, tokenBudget: 40, maxWaiting: 2000 };
  const counts = { finished: 0, aborted: 0, failed: 0, cached: 0 };
  const engine = makeEngine(model, options, (inputs, step) => {
    if (step % 61 === 60) throw new Error("on purpose");
    return inputs;
  });
  const priorities = ["LOW", "NORMAL", "HIGH"] as const;
  const asked: { answer: ReturnType<typeof engine.submit>[number]; prompt: number; id: number }[] =
    [];
  for (let id = 1; id <= 1000; id++) {
    const prompt = random.below(prompts.length);
    const priority = priorities[random.below(3)]!;
    const [answer] = engine.submit(ask(prompts[prompt]!, { priority }));
    asked.push({ answer: answer!, prompt, id });
    for (let i = random.below(3); i > 0; i--) engine.step();
    if (random.chance(0.5)) {
      const victim = asked[asked.length - 1 - random.below(Math.min(asked.length, 20))]!;
      if (!victim.answer.finished) engine.engine.abort(victim.id);
    }
    if (id % 50 === 0) engine.engine.check();
  }
  engine.run();
  engine.engine.check();
  for (const { answer, prompt } of asked) {
    if (answer.finished === "length") {
      expect(answer.tokens).toEqual(alone[prompt]!);
      counts.finished += 1;
      counts.cached += answer.cachedTokens > 0 ? 1 : 0;
    } else if (answer.finished === "error") counts.failed += 1;
    else counts.aborted += 1;
  }
  const { preemptions } = engine.engine.scheduler;
  engine.free();
  // A run in which these never happened would prove nothing.
  expect(counts.finished).toBeGreaterThan(400);
  for (const count of [counts.aborted, counts.failed, counts.cached, preemptions]) {
    expect(count).toBeGreaterThan(30);
  }
}, 120_000);

test("the second turn of a conversation of 4,000 tokens computes what is new and at most one block", () => {
  let computed = 0;
  const engine = makeEngine(model, { blocks: 300, tokenBudget: 512 }, (inputs) => {
    computed += inputs.tokens.length;
    return inputs;
  });
  const random = makeRandom(4);
  const words = (count: number) => Array.from({ length: count }, () => random.below(200));
  const turn = (prompt: number[]) => {
    computed = 0;
    const [answer] = engine.submit(ask(Uint32Array.from(prompt), { maxTokens: 40 }));
    engine.run();
    // Of the answer all tokens are computed but the last.
    return { answer: answer!, prompt, computed: computed - 39 };
  };
  const first = turn(words(4000));
  expect(first.computed).toBe(4000);
  const added = words(70);
  const second = turn([...first.prompt, ...first.answer.tokens, ...added]);
  expect(second.computed).toBeLessThanOrEqual(added.length + 1 + 32);
  expect(second.answer.cachedTokens).toBe(second.prompt.length - second.computed);

  const fresh = makeEngine(model, { blocks: 300, tokenBudget: 512, prefixCaching: false });
  const [expected] = fresh.submit(ask(Uint32Array.from(second.prompt), { maxTokens: 40 }));
  fresh.run();
  expect(second.answer.tokens).toEqual(expected!.tokens);
  fresh.free();
  engine.free();
}, 120_000);
