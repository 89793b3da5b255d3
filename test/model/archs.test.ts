import { describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { FloatType } from "../../src/device/device.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import {
  goldenOf,
  type TinyCase,
  tinyCase,
  tinyCases,
  writeTinyModel,
} from "../support/tiny-models.ts";

const runtime = useMlx();

const folder = temporaryFolder();

const TOLERANCE = 1e-4;
const GREEDY_TOKENS = 64;

const cases = tinyCases.map((tiny) => [tiny.name, tiny] as const);
const quantized = cases.filter(([, tiny]) => tiny.quantization);

// Every architecture runs through scheduler and paged store in test/worker/device.test.ts. The contiguous store is
// a second oracle, for a few that have most of what there is: windows, chunks, sinks, soft caps, experts, shared keys
// and values.
const few = cases.filter(([name]) =>
  ["llama-windows", "qwen3_moe", "gemma2", "gpt_oss", "gemma3n", "gemma4_text", "llama4"].includes(
    name,
  ),
);

describe("as mlx-lm does", () => {
  test.each(few)("%s computes the prompt's logits and the 64 greedy tokens", (_, tiny) => {
    const { prompt, last, sampled, greedy } = goldenOf(tiny);
    using loaded = load(tiny);
    const rows = promptLogits(loaded.model, prompt);
    expect(distance(rows.at(-1)!, last)).toBeLessThan(TOLERANCE);
    for (const [position, first] of sampled) {
      const found = rows[position]!.slice(0, first.length);
      expect(distance(found, first)).toBeLessThan(TOLERANCE);
    }
    expect(decode(loaded.model, [{ prompt }])).toEqual([greedy]);
  });

  test.each(quantized)(
    "%s does the same with its weights kept quantized, as on a GPU",
    (_, tiny) => {
      const { prompt, last, greedy } = goldenOf(tiny);
      using loaded = loadAsGpu(tiny, "float32");
      expect(distance(promptLogits(loaded.model, prompt).at(-1)!, last)).toBeLessThan(TOLERANCE);
      expect(decode(loaded.model, [{ prompt }], 8)).toEqual([greedy.slice(0, 8)]);
    },
  );
});

test("experts take as much memory as in the file, on a CPU too", () => {
  const tiny = tinyCase("qwen3_moe-separate-q4");
  using loaded = load(tiny, { device: deviceOf("cpu") });
  const file = readFileSync(join(folder, tiny.name, "model.safetensors"));
  const header = 8 + Number(file.readBigUInt64LE());
  expect(loaded.model.weightBytes).toBe(file.length - header);
});

test.each([
  ["mixtral", { sliding_window: 12 }, [12, 12]],
  ["phimoe", { sliding_window: 12 }, [12, 12]],
  ["plamo2", { attention_window_size: 12, full_attention_idx: [] }, [12]],
  ["plamo2", { attention_window_size: 12 }, [undefined]],
] as const)("%s has windows that mlx-lm leaves out: %o", (name, change, windows) => {
  const tiny = tinyCase(name);
  const path = mkdtempSync(join(folder, "windows-"));
  writeTinyModel(path, { ...tiny, config: { ...tiny.config, ...change } });
  const model = loadModel(path, { device: deviceOf(runtime.backend), dtype: "float32" });
  expect(model.states.kvs.map(({ window }) => window)).toEqual([...windows]);
  model.free();
});

test("ERNIE's experts are chosen with the corrections that only the authors' files have", () => {
  const tiny = tinyCase("ernie4_5_moe");
  const { prompt, last } = goldenOf(tiny);
  const extra = Object.fromEntries(
    [1, 2].map((layer) => [
      `model.layers.${layer}.mlp.moe_statics.e_score_correction_bias`,
      [1, 8],
    ]),
  );
  const logitsOf = (gain: number) => {
    const path = mkdtempSync(join(folder, "corrected-"));
    writeTinyModel(path, { ...tiny, extra, gains: { e_score: gain } });
    const model = loadModel(path, { device: deviceOf(runtime.backend), dtype: "float32" });
    const logits = promptLogits(model, prompt).at(-1)!;
    model.free();
    return logits;
  };
  expect(distance(logitsOf(0), last)).toBeLessThan(TOLERANCE);
  expect(distance(logitsOf(10), last)).toBeGreaterThan(0.1);
});

describe("however the tokens come", () => {
  test.each(few)("%s continues a prompt that is fed in chunks", (_, tiny) => {
    const { prompt, greedy } = goldenOf(tiny);
    using loaded = load(tiny);
    expect(decode(loaded.model, [{ prompt, chunk: 17 }])).toEqual([greedy]);
    expect(decode(loaded.model, [{ prompt, chunk: 3 }], 8)).toEqual([greedy.slice(0, 8)]);
  });

  test.each(few)("%s lets two sequences share each step", (_, tiny) => {
    const { prompt, greedy } = goldenOf(tiny);
    const other = prompt.slice(5, 28).reverse();
    using loaded = load(tiny);
    const [alone] = decode(loaded.model, [{ prompt: other }], 32);
    const together = decode(loaded.model, [{ prompt: other }, { prompt, chunk: 15 }], 32);
    expect(together).toEqual([alone!, greedy.slice(0, 32)]);
  });
});

describe("in 16 bits", () => {
  // MLX's CPU code multiplies by plain experts in float32 only: of those models, the packed ones.
  const computable = cases.filter(([, tiny]) => hasExperts(tiny) === Boolean(tiny.quantization));

  // What is recurrent is computed here, not only put together.
  const typed = cases.filter(
    ([, tiny]) => !isRecurrent(tiny) || computable.some(([, own]) => own === tiny),
  );
  // Types take turns: nothing but numbers in another type makes a difference, and that shows with either.
  const inTurn = typed.map(([name, tiny], i) => {
    return [name, (["bfloat16", "float16"] as const)[i % 2]!, tiny] as const;
  });
  test.each(inTurn)("%s stays in its type, %s", (_, dtype, tiny) => {
    using loaded = loadAsGpu(tiny, dtype);
    using _scope = new Scope();
    using sequence = new Sequence();
    const hidden = sequence.forward(loaded.model, [1, 2, 3]);
    expect([hidden.dtype, loaded.model.logits(hidden).dtype]).toEqual([dtype, dtype]);
  });

  // In bfloat16 tokens of a few go to other experts.
  const mixtures = cases.filter(([, tiny]) => hasExperts(tiny));
  test.each(mixtures)("%s stays near the logits on a CPU, with experts in float32", (_, tiny) => {
    const { prompt, last } = goldenOf(tiny);
    using loaded = load(tiny, { device: deviceOf("cpu"), dtype: "float16" });
    expect(correlation(promptLogits(loaded.model, prompt).at(-1)!, last)).toBeGreaterThan(0.97);
  });

  test.each(computable)("%s stays near the logits", (_, tiny) => {
    const { prompt, last } = goldenOf(tiny);
    using loaded = loadAsGpu(tiny, "bfloat16");
    const logits = promptLogits(loaded.model, prompt).at(-1)!;
    // A token that goes to another expert costs more than rounding does.
    expect(correlation(logits, last)).toBeGreaterThan(hasExperts(tiny) ? 0.97 : 0.995);
  });
});

/** By their tensors: those that have a matrix for each expert, in one tensor or in several. */
function hasExperts(tiny: TinyCase): boolean {
  const { tensors } = goldenOf(tiny);
  return Object.entries(tensors).some(
    ([name, { length }]) =>
      /\.experts\.\d+\./.test(name) || (length === 3 && /\.(switch_mlp|experts)\./.test(name)),
  );
}

/** By their tensors: those of convolutions and of decays. */
function isRecurrent(tiny: TinyCase): boolean {
  return Object.keys(goldenOf(tiny).tensors).some((name) => /conv|A_log/.test(name));
}

type Loaded = { model: LoadedModel; [Symbol.dispose](): void };

/** A GPU computes with packed weights and in 16 bits; MLX's CPU code can do so too, slowly. */
function loadAsGpu(tiny: TinyCase, dtype: FloatType): Loaded {
  const { backend } = runtime;
  return load(tiny, { device: deviceOf(backend === "cpu" ? "metal" : backend), dtype });
}

function load(
  tiny: TinyCase,
  options: LoadOptions = { device: deviceOf(runtime.backend), dtype: "float32" },
): Loaded {
  const path = join(folder, tiny.name);
  if (!written.has(path)) {
    mkdirSync(path, { recursive: true });
    writeTinyModel(path, tiny);
    written.add(path);
  }
  const model = loadModel(path, options);
  return { model, [Symbol.dispose]: () => model.free() };
}
const written = new Set<string>();

/** A sequence that frees its keys and values. */
class Sequence {
  readonly kv = new ContiguousKv();

  forward(model: LoadedModel, tokens: readonly number[]): MlxArray {
    const step = contiguousStep([{ kv: this.kv, count: tokens.length }]);
    return model.forward(array(Int32Array.from(tokens)), step);
  }

  [Symbol.dispose](): void {
    this.kv.free();
  }
}

function promptLogits(model: LoadedModel, prompt: readonly number[]): number[][] {
  using _ = new Scope();
  using sequence = new Sequence();
  return rowsOf(model.logits(sequence.forward(model, prompt)));
}

function rowsOf(logits: MlxArray): number[][] {
  const [rows, columns] = logits.shape as [number, number];
  const numbers = logits.numbers();
  return Array.from({ length: rows }, (_, i) => numbers.slice(i * columns, (i + 1) * columns));
}

type Request = { prompt: readonly number[]; chunk?: number };

/** All sequences go on together, one chunk or one token a step each. */
function decode(model: LoadedModel, requests: Request[], count = GREEDY_TOKENS): number[][] {
  const rows = requests.map(({ prompt, chunk = prompt.length }) => {
    return { kv: new ContiguousKv(), waiting: [...prompt], chunk, tokens: [] as number[] };
  });
  const goesOn = ({ tokens }: (typeof rows)[number]) => tokens.length < count;
  while (rows.some(goesOn)) {
    using _ = new Scope();
    const running = rows.filter(goesOn);
    const parts = running.map(({ waiting, chunk }) => waiting.splice(0, chunk));
    const step = contiguousStep(running.map(({ kv }, i) => ({ kv, count: parts[i]!.length })));
    const hidden = model.forward(array(Int32Array.from(parts.flat())), step);
    const logits = rowsOf(model.logits(hidden));
    let end = 0;
    for (const [i, row] of running.entries()) {
      end += parts[i]!.length;
      if (row.waiting.length > 0) continue;
      const next = indexOfMax(logits[end - 1]!);
      row.tokens.push(next);
      row.waiting.push(next);
    }
  }
  for (const { kv } of rows) kv.free();
  return rows.map(({ tokens }) => tokens);
}

function indexOfMax(numbers: readonly number[]): number {
  return numbers.reduce((best, x, i) => (x > numbers[best]! ? i : best), 0);
}

function distance(found: readonly number[], expected: readonly number[]): number {
  expect(found.length).toBe(expected.length);
  return Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)));
}

function correlation(a: readonly number[], b: readonly number[]): number {
  const mean = (xs: readonly number[]) => xs.reduce((sum, x) => sum + x, 0) / xs.length;
  const [meanA, meanB] = [mean(a), mean(b)];
  const product = mean(a.map((x, i) => (x - meanA) * (b[i]! - meanB)));
  const spread = (xs: readonly number[], m: number) => mean(xs.map((x) => (x - m) ** 2));
  return product / Math.sqrt(spread(a, meanA) * spread(b, meanB));
}
