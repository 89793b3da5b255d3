// Every architecture that transformers has too, against the authors' code (scripts/goldens/authors.py): heads, groups,
// RoPE, windows and routing as in published models, names and layouts as in published files, and prompts beyond windows
// and original lengths. On a GPU: `MLX_SERVE_BACKEND=cuda MLX_ENABLE_TF32=0 bun test test/worker/authors.test.ts`
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { backend } from "../../ffi/native.ts";
import type { PromptLogprob } from "../../src/engine/protocol.ts";
import { loadModel } from "../../src/model/load.ts";
import { architectures } from "../../src/model/registry.ts";
import {
  authorsCases,
  authorsGoldens,
  modelTypes,
  promptOf,
  writeAuthorsWeights,
} from "../support/authors-models.ts";
import { deviceOf } from "../support/devices.ts";
import { type Answer, makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const TOLERANCE = 1e-3;
const EVERY = 25;
const SHORT_TOKENS = 200;

test("there is a tiny model of every architecture that transformers has too", () => {
  const both = modelTypes.filter((type) => architectures.has(type));
  const own = new Set(authorsCases.map(({ config }) => config.model_type));
  expect(both.filter((type) => !own.has(type))).toEqual([]);
});

describe.each(authorsCases.map((tiny) => [tiny.name, tiny] as const))("%s", (name, tiny) => {
  const golden = authorsGoldens[name]!;
  const prompt = promptOf(tiny);
  let path: string;
  beforeAll(() => {
    path = mkdtempSync(join(tmpdir(), "authors-"));
    writeAuthorsWeights(path, tiny);
  });
  afterAll(() => rmSync(path, { recursive: true }));

  test("log-probabilities and greedy tokens, configured as published", () => {
    const { tokens, first } = answerOf(tiny.config, prompt, golden.greedy.length);
    expect(tokens).toEqual(golden.greedy);
    const last = first!.top!.toSorted((a, b) => a.token - b.token).map(({ logprob }) => logprob);
    expect(distance(last.slice(0, golden.last.length), golden.last)).toBeLessThan(TOLERANCE);
    expect(distance(scoresOf(first), golden.prompt)).toBeLessThan(TOLERANCE);
  });

  test("log-probabilities of a short prompt, configured as transformers saves it", () => {
    const config = { ...golden.saved, model_type: tiny.config.model_type };
    const { first } = answerOf(config, prompt.subarray(0, SHORT_TOKENS), 1);
    expect(distance(scoresOf(first), golden.short)).toBeLessThan(TOLERANCE);
  });

  function answerOf(config: object, prompt: Uint32Array, maxTokens: number): Answer {
    writeFileSync(join(path, "config.json"), JSON.stringify(config));
    const device = deviceOf(backend());
    const model = loadModel(path, { device, dtype: "float32" });
    try {
      const engine = makeEngine(model, { device, tokenBudget: 256 });
      const sampling = { temperature: 0, logprobs: model.shape.vocabulary };
      const [answer] = engine.submit({ prompt, maxTokens, sampling, promptLogprobs: 0 });
      engine.run();
      engine.free();
      return answer!;
    } finally {
      model.free();
    }
  }
});

/** Of every 25th token. */
function scoresOf(first: Answer["first"]): number[] {
  const all = first!.promptLogprobs as PromptLogprob[];
  return all.filter((_, i) => (i + 1) % EVERY === 0).flatMap(({ logprob }) => logprob ?? []);
}

function distance(found: readonly number[], expected: readonly number[]): number {
  expect(found.length).toBe(expected.length);
  return Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)));
}
