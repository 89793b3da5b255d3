// Formats of other tools in architectures that take their matrices apart, stack or join them: experts, latent
// attention, fused projections, recurrent layers. Each computes what it computes with the same numbers in float32.
import { expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { openTensorData } from "../../src/files/gguf.ts";
import { readSafetensorsIndex } from "../../src/files/safetensors.ts";
import { loadModel } from "../../src/model/load.ts";
import { deviceOf } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { type FolderFormat, folderFormats } from "../support/quantized-folder.ts";
import { type FileTensors, f32, writeFolder } from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { goldenOf, type TinyCase, tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = temporaryFolder();

let folders = 0;
const newFolder = () => {
  const path = join(root, String(folders++));
  mkdirSync(path);
  return path;
};

/** The tensors of the case's folder, in the authors' layout. */
function tensorsOf(tiny: TinyCase): FileTensors {
  const folder = newFolder();
  writeTinyModel(folder, tiny);
  const tensors: FileTensors = {};
  for (const [name, { dtype, shape, offset, bytes, file }] of readSafetensorsIndex(folder)
    .tensors) {
    const data = new Uint8Array(bytes);
    using opened = openTensorData(file);
    opened.read(offset, data);
    tensors[name] = { dtype, shape, data };
  }
  return tensors;
}

/** Linear layers in the format, and the same numbers in float32. */
function quantized(tensors: FileTensors, { quantize }: FolderFormat): [FileTensors, FileTensors] {
  const [packed, numbers] = [{ ...tensors }, { ...tensors }];
  let seed = 1;
  for (const [name, { shape }] of Object.entries(tensors)) {
    const [, stem] = /^(.*(?:_proj|\.w[123]))\.weight$/.exec(name) ?? [];
    const [rows, columns] = shape as [number, number];
    if (!stem || shape.length !== 2 || rows % 32 !== 0 || columns % 32 !== 0) continue;
    const made = quantize({ rows, columns, seed: seed++ });
    numbers[name] = f32(shape, made.numbers);
    delete packed[name];
    for (const [kind, tensor] of Object.entries(made.tensors)) packed[`${stem}.${kind}`] = tensor;
  }
  expect(seed).toBeGreaterThan(10);
  return [packed, numbers];
}

/** Log-probabilities of all tokens after a prompt. */
function logprobs(tiny: TinyCase, config: object, tensors: FileTensors): number[] {
  const device = deviceOf("cpu");
  const model = loadModel(writeFolder(newFolder(), config, tensors), { device });
  const engine = makeEngine(model, { device });
  const { prompt, last } = goldenOf(tiny);
  const sampling = { temperature: 0, logprobs: last.length };
  const [answer] = engine.submit({ prompt: Uint32Array.from(prompt), maxTokens: 1, sampling });
  engine.run();
  engine.free();
  model.free();
  const found: number[] = [];
  for (const { token, logprob } of answer!.first!.top!) found[token] = logprob;
  return found;
}

const cases: [string, string][] = [
  ["phi3", "gptq with an order for each matrix"],
  ["phi3", "bitnet"],
  ["qwen3_moe-separate", "gptq with act-order"],
  ["qwen3_moe-separate", "awq"],
  ["qwen3_moe-separate", "fp8 in blocks"],
  ["deepseek_v3-joint", "gptq with act-order"],
  ["deepseek_v3-joint", "fp8 in blocks"],
  ["deepseek_v3-joint", "compressed-tensors with 4 bits"],
  ["qwen3_next-authors", "gptq with an order for each matrix"],
  ["kimi_linear-authors", "compressed-tensors with int8"],
];

test.each(cases)(
  "%s computes with %s",
  (name, kind) => {
    const tiny = tinyCase(name);
    const format = folderFormats[kind]!;
    const [packed, numbers] = quantized(tensorsOf(tiny), format);
    const config = { ...tiny.config, quantization_config: format.config };
    const found = logprobs(tiny, config, packed);
    const expected = logprobs(tiny, tiny.config, numbers);
    expect(found.length).toBe(expected.length);
    const differences = found.map((value, token) => Math.abs(value - expected[token]!));
    expect(Math.max(...differences)).toBeLessThan(1e-3);
  },
  60_000,
);
