// The default model, against what mlx-lm answers with it (scripts/goldens/smollm2.py).
import { describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { openTensorData, readGguf } from "../../src/files/gguf.ts";
import { dequantize } from "../../src/files/gguf-quants.ts";
import { array } from "../../src/mlx/array.ts";
import { panelRows } from "../../src/mlx/cpu.ts";
import { toBfloat16 } from "../../src/mlx/dtype.ts";
import { argmax, take } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { Model } from "../../src/model/contract/model.ts";
import { loadModel } from "../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { blockNames } from "../support/gguf-file.ts";
import { useMlx } from "../support/mlx.ts";
import { type FileTensors, writeFolder } from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

useMlx();
const root = temporaryFolder();

type Answer = { prompt: number[]; tokens: number[] };
const answers: Answer[] = await Bun.file(
  join(import.meta.dir, "../golden/smollm2/tokens.json"),
).json();

/** The most likely tokens after each prompt, all sequences in every step. */
function greedy(model: Model, prompts: readonly number[][], count: number): number[][] {
  const sequences = prompts.map((prompt) => {
    return { kv: new ContiguousKv(), next: prompt, tokens: [] as number[] };
  });
  for (let i = 0; i < count; i++) {
    using _ = new Scope();
    const step = contiguousStep(sequences.map(({ kv, next }) => ({ kv, count: next.length })));
    const hidden = model.forward(
      array(Int32Array.from(sequences.flatMap(({ next }) => next))),
      step,
    );
    let end = 0;
    const lasts = sequences.map(({ next }) => {
      end += next.length;
      return end - 1;
    });
    const chosen = argmax(model.logits(take(hidden, array(Int32Array.from(lasts))))).numbers();
    sequences.forEach((sequence, row) => {
      sequence.next = [chosen[row]!];
      sequence.tokens.push(chosen[row]!);
    });
  }
  for (const { kv } of sequences) kv.free();
  return sequences.map(({ tokens }) => tokens);
}

function expectTheSame(path: string, asked: readonly Answer[], count: number) {
  const model = loadModel(path, { device: deviceOf("cpu") });
  const packed = panelRows() > 0 ? 98_346_240 : 115_156_224;
  const bytes = path.endsWith(".gguf") ? packed : 538_060_032;
  expect([model.dtype, model.weightBytes]).toEqual(["float32", bytes]);
  const prompts = asked.map(({ prompt }) => prompt);
  const found = greedy(model, prompts, count);
  model.free();
  expect(found).toEqual(asked.map(({ tokens }) => tokens.slice(0, count)));
}

const heads: Record<string, number> = { attn_q: 9, attn_k: 3 };
const config = {
  model_type: "llama",
  hidden_size: 576,
  intermediate_size: 1536,
  num_hidden_layers: 30,
  num_attention_heads: 9,
  num_key_value_heads: 3,
  rms_norm_eps: 1e-5,
  rope_theta: 100_000,
  vocab_size: 49_152,
  max_position_embeddings: 8192,
  tie_word_embeddings: true,
};

type Store = (values: Float32Array) => NodeJS.ArrayBufferView;

/** The model as Hugging Face has it: other names, and Q and K with the halves of a head apart. */
function writeHuggingFace(folder: string, dtype: "F32" | "F16" | "BF16", store: Store): string {
  const path = defaultModelPath();
  using file = openTensorData(path);
  const tensors: FileTensors = {};
  for (const { name, type, shape, offset, bytes } of readGguf(path).tensors.values()) {
    const [, layer, part = ""] = /^blk\.(\d+)\.(\w+)\.weight$/.exec(name) ?? [];
    const outside = name === "output_norm.weight" ? "model.norm" : "model.embed_tokens";
    const stem = part ? `model.layers.${layer}.${blockNames.llama![part]}` : outside;
    const data = () => {
      const source = new Uint8Array(bytes);
      file.read(offset, source);
      const values = new Float32Array(shape.reduce((a, b) => a * b));
      dequantize(type, source, values);
      return store(part in heads ? halves(values, shape, heads[part]!) : values);
    };
    tensors[`${stem}.weight`] = { dtype, shape, data };
  }
  return writeFolder(folder, config, tensors);
}

/** (heads, D / 2, 2) rows -> (heads, 2, D / 2) */
function halves(values: Float32Array, shape: readonly number[], count: number): Float32Array {
  const [rows, columns] = shape as [number, number];
  const half = rows / count / 2;
  const moved = new Float32Array(values.length);
  for (let head = 0; head < count; head++) {
    for (let pair = 0; pair < half; pair++) {
      for (let side = 0; side < 2; side++) {
        const from = ((head * half + pair) * 2 + side) * columns;
        const to = ((head * 2 + side) * half + pair) * columns;
        moved.set(values.subarray(from, from + columns), to);
      }
    }
  }
  return moved;
}

describe("SmolLM2 continues prompts in one batch as mlx-lm does each alone", () => {
  // As many as 64 tokens each are drawn in test/worker/smollm2.test.ts.
  test("24 prompts with 12 tokens each, from the GGUF file", () => {
    expect(answers.length).toBe(24);
    expectTheSame(defaultModelPath(), answers, 12);
  }, 120_000);

  test("8 of them, from a folder of float32", () => {
    const path = writeHuggingFace(join(root, "float32"), "F32", (values) => values);
    expectTheSame(path, answers.slice(0, 8), 12);
    rmSync(path, { recursive: true });
  }, 120_000);

  test.each([
    ["F16", (values: Float32Array) => new Float16Array(values)],
    [
      "BF16",
      (values: Float32Array) => {
        const bits = new Uint16Array(values.length);
        toBfloat16(values, bits);
        return bits;
      },
    ],
  ] as const)(
    "with one token, from a folder of %s that rounds its weights",
    (dtype, store) => {
      const path = writeHuggingFace(join(root, dtype), dtype, store);
      expectTheSame(path, answers.slice(0, 4), 1);
      rmSync(path, { recursive: true });
    },
    60_000,
  );
});
