// Every architecture that transformers has too, against the authors' code (scripts/goldens/authors.py): heads, groups,
// RoPE, windows and routing as in published models, names and layouts as in published files, and prompts beyond windows
// and original lengths. On a GPU: `MLX_SERVE_BACKEND=cuda MLX_ENABLE_TF32=0 bun test test/worker/authors.test.ts`
import { beforeAll, describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { backend } from "../../ffi/native.ts";
import type { PromptLogprob } from "../../src/engine/protocol.ts";
import { loadModel } from "../../src/model/load.ts";
import { architectures } from "../../src/model/registry.ts";
import {
  bytesOf,
  type FileTensor,
  type TinyWeights,
  uniform,
  valuesOf,
  writeSafetensors,
} from "../../src/self-test/tiny-weights.ts";
import { deviceOf } from "../support/devices.ts";
import { type Answer, makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

type Config = Record<string, unknown> & { model_type: string };
type Tiny = TinyWeights & { name: string; config: Config };
type Golden = {
  seed: number;
  /** Shapes -> names, in which "0-3" stands for a name for each number. */
  tensors: Record<string, string>;
  /** The configuration as transformers saves it. */
  saved: object;
  /** Log-probabilities of every 25th token of the prompt. */
  prompt: number[];
  /** The same for its first 200 tokens alone. */
  short: number[];
  /** Log-probabilities of the first tokens of the vocabulary after the prompt. */
  last: number[];
  greedy: number[];
};

/** `model_types`: all text models of transformers. */
type Goldens = { model_types: string; models: Record<string, Golden> };

const readJson = (name: string) =>
  Bun.file(join(import.meta.dir, "../golden/authors", name)).json();
const tinies: Tiny[] = await readJson("configs.json");
const { model_types: modelTypes, models }: Goldens = await readJson("goldens.json");

const TOLERANCE = 1e-3;
const PROMPT_TOKENS = 700;
const SHORT_TOKENS = 200;
const EVERY = 25;
/** Higher tokens stand for images. */
const TEXT_TOKENS = 240;

useMlx();

test("there is a tiny model of every architecture that transformers has too", () => {
  const both = modelTypes.split(" ").filter((type) => architectures.has(type));
  const own = new Set(tinies.map(({ config }) => config.model_type));
  expect(both.filter((type) => !own.has(type))).toEqual([]);
});

describe.each(tinies.map((tiny) => [tiny.name, tiny] as const))("%s", (name, tiny) => {
  const golden = models[name]!;
  const uniforms = uniform(`prompt/${name}`, PROMPT_TOKENS);
  const prompt = Uint32Array.from(uniforms, (x) => ((x + 1) * TEXT_TOKENS) / 2);
  const path = temporaryFolder();
  beforeAll(() => writeSafetensors(join(path, "model.safetensors"), tensorsOf(tiny, golden)));

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

function tensorsOf(tiny: Tiny, { seed, tensors }: Golden): Map<string, FileTensor> {
  const named = Object.entries(tensors).flatMap(([sizes, patterns]) => {
    const shape = sizes.split(" ").filter(Boolean).map(Number);
    const names = patterns.split(" ").flatMap(namesOf);
    return names.map((name): [string, FileTensor] => {
      return [name, { dtype: "F32", shape, bytes: bytesOf(valuesOf(tiny, seed, name, shape)) }];
    });
  });
  return new Map(named);
}

/** "layers.0-1.mlp" -> "layers.0.mlp", "layers.1.mlp" */
function namesOf(pattern: string): string[] {
  const range = /(?<=^|\.)(\d+)-(\d+)(?=\.|$)/.exec(pattern);
  if (!range) return [pattern];
  const [first, last] = [Number(range[1]), Number(range[2])];
  const numbers = Array.from({ length: last - first + 1 }, (_, i) => `${first + i}`);
  return numbers.flatMap((number) => namesOf(pattern.replace(range[0], number)));
}

/** Log-probabilities of every 25th token. */
function scoresOf(first: Answer["first"]): number[] {
  const all = first!.promptLogprobs as PromptLogprob[];
  return all.filter((_, i) => (i + 1) % EVERY === 0).flatMap(({ logprob }) => logprob ?? []);
}

function distance(found: readonly number[], expected: readonly number[]): number {
  expect(found.length).toBe(expected.length);
  return Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)));
}
