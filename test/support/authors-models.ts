// Tiny models as their authors publish them: configurations from test/golden/authors/configs.json, the names and shapes
// of published files, and weights from a hash of the names. scripts/goldens/authors.py computes the same weights and
// writes what transformers makes of them.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import {
  bytesOf,
  type FileTensor,
  type TinyWeights,
  uniform,
  valuesOf,
  writeSafetensors,
} from "../../src/self-test/tiny-weights.ts";

type Config = Record<string, unknown> & { model_type: string };

export type AuthorsCase = TinyWeights & { name: string; config: Config };

export type AuthorsGolden = {
  seed: number;
  /** By names, in which "0-3" stands for a name for each number. */
  tensors: Record<string, number[]>;
  /** The configuration as transformers saves it. */
  saved: Config;
  /** Log-probabilities of every 25th token of the prompt. */
  prompt: number[];
  /** Of the first tokens of the vocabulary, after the prompt. */
  last: number[];
  /** Of every 25th token of its first 200, alone. */
  short: number[];
  greedy: number[];
};

const PROMPT_TOKENS = 700;
const TEXT_TOKENS = 240;

const folder = join(import.meta.dir, "../golden/authors");
const readJson = (name: string) => JSON.parse(readFileSync(join(folder, name), "utf8"));

export const authorsCases: AuthorsCase[] = readJson("configs.json");

/** `model_types` are all that transformers has for text. */
const goldens: {
  model_types: string[];
  models: Record<string, AuthorsGolden>;
} = readJson("goldens.json");
export const { model_types: modelTypes, models: authorsGoldens } = goldens;

export function promptOf({ name }: AuthorsCase): Uint32Array {
  const numbers = uniform(`prompt/${name}`, PROMPT_TOKENS);
  return Uint32Array.from(numbers, (x) => ((x + 1) * TEXT_TOKENS) / 2);
}

/** Writes the weights of a model's folder. */
export function writeAuthorsWeights(path: string, tiny: AuthorsCase): void {
  const { seed, tensors } = authorsGoldens[tiny.name]!;
  const file = new Map<string, FileTensor>();
  for (const [pattern, shape] of Object.entries(tensors)) {
    for (const name of namesOf(pattern)) {
      file.set(name, { dtype: "F32", shape, bytes: bytesOf(valuesOf(tiny, seed, name, shape)) });
    }
  }
  writeSafetensors(join(path, "model.safetensors"), file);
}

/** "layers.0-1.mlp" -> "layers.0.mlp", "layers.1.mlp" */
function namesOf(pattern: string): string[] {
  const range = /(?<=^|\.)(\d+)-(\d+)(?=\.|$)/.exec(pattern);
  if (!range) return [pattern];
  const [first, last] = [Number(range[1]), Number(range[2])];
  const numbers = Array.from({ length: last - first + 1 }, (_, i) => `${first + i}`);
  return numbers.flatMap((number) => namesOf(pattern.replace(range[0], number)));
}
