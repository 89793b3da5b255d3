// Longrope's factors follow the length of each sequence, as the authors compute it: scripts/goldens/authors_fixes.py
// writes what transformers gives for each length.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import type { Device } from "../../src/device/device.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import type { StateRow } from "../../src/model/state/state-store.ts";
import longrope from "../golden/authors/longrope.json";
import { deviceOf } from "../support/devices.ts";
import { type Answer, makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { goldenOf, loadTinyModel, tinyCase } from "../support/tiny-models.ts";

useMlx();

const { prompt, greedy } = goldenOf(tinyCase("phi3"));
const { phi3: logprobs } = longrope;
const whole = [...prompt, ...greedy];
/** original_max_position_embeddings */
const ORIGINAL = 66;
/** Tokens of a prompt that is long itself; its first blocks are those of the short one's text. */
const LONG = 90;

describe("longrope", () => {
  let device: Device;
  let model: LoadedModel;
  beforeAll(() => {
    device = deviceOf(backend());
    model = loadTinyModel(tinyCase("phi3"), { device, dtype: "float32" });
  }, 120_000);
  afterAll(() => model.free());

  /** `rows` of each step. */
  function start({ tokenBudget = 512, maxBatch = 8 } = {}) {
    const steps: (readonly StateRow[])[] = [];
    const engine = makeEngine(model, { device, tokenBudget, maxBatch }, (inputs) => {
      steps.push(inputs.rows);
      return inputs;
    });
    const ask = (length: number, maxTokens: number, more: { salt?: string } = {}) =>
      engine.submit({
        prompt: Uint32Array.from(whole.slice(0, length)),
        maxTokens,
        sampling: { temperature: 0, logprobs: 1 },
        ...more,
      })[0]!;
    return { ...engine, ask, steps };
  }

  function expectAuthors({ tokens, logprobs: found }: Answer, length: number): void {
    const first = length - prompt.length;
    expect(tokens).toEqual(greedy.slice(first, first + tokens.length));
    const off = found.map((each, i) => Math.abs(each! - logprobs[first + i]!));
    expect(Math.max(...off)).toBeLessThan(1e-4);
  }

  test.each([16, 512])(
    "short, long and lengthened sequences in one batch, %i tokens a step",
    (tokenBudget) => {
      const engine = start({ tokenBudget });
      const short = engine.ask(prompt.length, ORIGINAL - prompt.length);
      const growing = engine.ask(prompt.length, greedy.length, { salt: "growing" });
      const long = engine.ask(LONG, whole.length - LONG);
      engine.run();
      engine.free();
      expectAuthors(short, prompt.length);
      expectAuthors(growing, prompt.length);
      expectAuthors(long, LONG);
      const ofBoth = engine.steps.filter((rows) => new Set(rows.map((row) => row.isLong)).size > 1);
      expect(ofBoth.some((rows) => rows.every(({ count }) => count === 1))).toBe(true);
      expect(ofBoth.some((rows) => rows.some(({ count }) => count > 1))).toBe(true);
    },
    120_000,
  );

  test("a prompt of the original length is short, one of a token more is long", () => {
    const engine = start();
    const [last, next] = [engine.ask(ORIGINAL, 3), engine.ask(ORIGINAL + 1, 3)];
    engine.run();
    engine.free();
    expectAuthors(last, ORIGINAL);
    expectAuthors(next, ORIGINAL + 1);
    const begun = engine.steps.flat().filter(({ start: first }) => first === 0);
    expect(begun.slice(0, 2).map(({ isLong }) => isLong)).toEqual([false, true]);
  }, 120_000);

  test("a long prompt whose tokens are computed one by one is long from its first token on", () => {
    const engine = start({ tokenBudget: 1, maxBatch: 1 });
    const answer = engine.ask(LONG, 4);
    engine.run();
    engine.free();
    expectAuthors(answer, LONG);
    expect(engine.steps.slice(0, LONG).map((rows) => rows[0]!.count)).toEqual(Array(LONG).fill(1));
  }, 120_000);

  test("sequences share prefixes only with those of their kind", () => {
    const engine = start();
    const cached = [prompt.length, LONG, LONG, prompt.length].map((length) => {
      const answer = engine.ask(length, 2);
      engine.run();
      expectAuthors(answer, length);
      return answer.cachedTokens;
    });
    engine.free();
    expect(cached).toEqual([0, 0, 64, 32]);
  }, 120_000);

  test("a sequence that becomes long is recomputed once, from its first token", () => {
    const engine = start();
    const answer = engine.ask(prompt.length, greedy.length);
    engine.run();
    engine.free();
    expectAuthors(answer, prompt.length);
    const begun = engine.steps.flat().filter(({ start: first }) => first === 0);
    expect(begun.map(({ count, isLong }) => [count, isLong])).toEqual([
      [prompt.length, false],
      [ORIGINAL + 1, true],
    ]);
  }, 120_000);

  test("is refused at the load where keys do not depend on their sequence's length", () => {
    const tiny = tinyCase("minicpm3");
    const scaling = { ...Object(tiny.config.rope_scaling), short_factor: [1, 1, 1, 1] };
    const changed = { ...tiny, config: { ...tiny.config, rope_scaling: scaling } };
    expect(() => loadTinyModel(changed, { device })).toThrow("different short and long factors");
  });
});
