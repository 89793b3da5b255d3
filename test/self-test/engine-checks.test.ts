// The self-test's checks through the engine: they pass here, there is one for each kind of state, and they find what is
// broken.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import { worstOf } from "../../src/self-test/check.ts";
import { type EngineCheck, modelChecks } from "../../src/self-test/engine-checks.ts";
import { measureEngine } from "../../src/self-test/engine-speed.ts";
import { samplingChecks } from "../../src/self-test/sampling-checks.ts";
import { type TinyModel, tinyModel } from "../../src/self-test/tiny-models.ts";

let engine: EngineClient;
beforeAll(async () => {
  engine = await EngineClient.start(engineSetup());
});
afterAll(() => engine.stop());

const checks = [...modelChecks(), ...samplingChecks()];
const named = (part: string) => checks.filter(({ name }) => name.includes(part));

/** Of one that is run while a golden is another. */
async function problemWith<K extends keyof TinyModel>(
  check: EngineCheck,
  model: TinyModel,
  key: K,
  value: TinyModel[K],
): Promise<string | undefined> {
  const before = model[key];
  model[key] = value;
  try {
    return worstOf(await check.run(engine)).problem;
  } finally {
    model[key] = before;
  }
}

for (const each of checks) {
  test(`${each.name} passes`, async () => {
    expect(worstOf(await each.run(engine)).problem).toBeUndefined();
  }, 60_000);
}

test("keys and values, latents and states have models", () => {
  const all = "keys and values,windows,share,experts,4 bits,latents,a state,convolutions";
  for (const kept of all.split(",")) {
    expect(named(kept).length).toBeGreaterThan(1);
  }
});

describe("what is not as the golden has it is found", () => {
  const llama = tinyModel("llama");

  test("a token", async () => {
    const greedy = llama.greedy.with(50, (llama.greedy[50]! + 1) % 256);
    for (const check of named(": llama,")) {
      const problem = await problemWith(check, llama, "greedy", greedy);
      expect(problem).toMatch(/^(greedy|answer \d), tokens: 1 wrong$/);
    }
  }, 60_000);

  test("a logit", async () => {
    const last = llama.last.with(7, llama.last[7]! + 0.1);
    const [check] = named("alone, then prefix-hit: llama,");
    const problem = await problemWith(check!, llama, "last", last);
    expect(problem).toMatch(/^log-probabilities: off by 0\.09\d+, where 0\.001 is allowed$/);
  }, 60_000);

  test("what is drawn from logits", async () => {
    const last = llama.last.toReversed();
    for (const check of named("sampling:")) {
      expect(await problemWith(check, llama, "last", last)).toMatch(/, tokens: \d+ wrong$/);
    }
  }, 60_000);

  test("answers beside those with a grammar", async () => {
    const greedy = llama.greedy.toReversed();
    const [check] = named("grammar:");
    const problem = await problemWith(check!, llama, "greedy", greedy);
    expect(problem).toMatch(/^without one, tokens: \d+ wrong$/);
  }, 60_000);
});

test("the engine's speed is measured", async () => {
  const figures = await measureEngine(engine);
  expect(figures.map(({ name }) => name)).toEqual([
    "the engine, prompts",
    "the engine, 1 request",
    "the engine, 16 requests",
  ]);
  for (const { value } of figures) expect(value).toBeGreaterThan(0);
}, 120_000);
