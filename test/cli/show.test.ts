import { afterAll, beforeEach, expect, spyOn, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { show } from "../../src/cli/show.ts";
import { gguf, json, safetensors } from "../hub/small-models.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = mkdtempSync(join(tmpdir(), "cli-show-"));
afterAll(() => {
  log.mockRestore();
  rmSync(root, { recursive: true });
});

let env: Record<string, string>;
beforeEach(() => {
  env = { HF_HUB_CACHE: join(root, "hub"), HOME: root };
  log.mockClear();
});

/** A model's folder, of these files. */
function folder(files: Record<string, Buffer>): string {
  const path = mkdtempSync(join(root, "model-"));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(path, name), content);
  return path;
}

async function shown(name: string): Promise<unknown> {
  await show([name, "--json"], env);
  return JSON.parse(log.mock.calls.at(-1)![0]);
}

const config = { model_type: "llama", max_position_embeddings: 2048, torch_dtype: "float32" };
const plain = safetensors({
  "embed.weight": { dtype: "BF16", shape: [10, 4], bytes: 80 },
  "norm.weight": { dtype: "F32", shape: [4], bytes: 16 },
});

test("show describes a folder of safetensors", async () => {
  const path = folder({
    "config.json": json(config),
    "model.safetensors": plain,
    "tokenizer_config.json": json({ chat_template: "{{ x }}" }),
  });
  expect(await shown(path)).toEqual({
    name: path.slice(root.length + 1),
    path,
    format: "safetensors",
    architecture: "llama",
    parameters: 44,
    contextLength: 2048,
    dtype: "bf16",
    hasChatTemplate: true,
    files: [
      { path: "config.json", bytes: json(config).length },
      { path: "model.safetensors", bytes: plain.length },
      { path: "tokenizer_config.json", bytes: json({ chat_template: "{{ x }}" }).length },
    ],
  });
});

test("show counts what MLX has packed as what it stands for", async () => {
  const packed = safetensors({
    "a.weight": { dtype: "U32", shape: [2, 16], bytes: 128 }, // (2, 128) in 4 bits
    "a.scales": { dtype: "F16", shape: [2, 2], bytes: 8 },
    "a.biases": { dtype: "F16", shape: [2, 2], bytes: 8 },
    "b.weight": { dtype: "U32", shape: [2, 16], bytes: 128 }, // (2, 64) in 8 bits
    "b.scales": { dtype: "F16", shape: [2, 2], bytes: 8 },
    "b.biases": { dtype: "F16", shape: [2, 2], bytes: 8 },
    "norm.weight": { dtype: "F16", shape: [4], bytes: 8 },
  });
  const quantization = { group_size: 64, bits: 4, b: { group_size: 32, bits: 8 } };
  const path = folder({
    "config.json": json({ text_config: config, architectures: ["Tiny"], quantization }),
    "model.safetensors": packed,
  });
  expect(await shown(path)).toMatchObject({
    architecture: "Tiny",
    parameters: 2 * 128 + 2 * 64 + 4,
    quantization: "4 bits, groups of 64, affine",
    contextLength: 2048,
    dtype: "f16",
    hasChatTemplate: false,
  });
});

test("show leaves out what it cannot know", async () => {
  const quantization = { quantization_config: { quant_method: "gptq" } };
  const path = folder({ "config.json": json(quantization), "model.safetensors": plain });
  const model = await shown(path);
  expect(model).toMatchObject({ quantization: "gptq" });
  expect(model).not.toHaveProperty("parameters");
  await show([path], env);
  expect(log.mock.calls.at(-1)![0]).toContain("parameters    unknown");
});

test("show describes a GGUF file", async () => {
  const content = gguf({
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "tokenizer.chat_template": "{{ x }}",
  });
  const path = join(folder({ "tiny.gguf": content }), "tiny.gguf");
  expect(await shown(path)).toEqual({
    name: "tiny",
    path,
    format: "gguf",
    architecture: "llama",
    parameters: 32,
    quantization: "Q8_0",
    contextLength: 8192,
    hasChatTemplate: true,
    files: [{ path: "tiny.gguf", bytes: content.length }],
  });
  await show([path], env);
  expect(log.mock.calls.at(-1)![0].split("\n")).toEqual([
    "model         tiny",
    "format        gguf",
    "architecture  llama",
    "parameters    32",
    "quantization  Q8_0",
    "context       8192 tokens",
    "template      yes",
    `size          ${content.length} B`,
    `path          ${path}`,
    "files",
    `  tiny.gguf  ${content.length} B`,
  ]);
});

test("show describes a GGUF file in parts as one", async () => {
  const part = (no: number, tensor: string) =>
    gguf({ "general.architecture": "llama", "split.no": no, "split.count": 2 }, tensor);
  const names = ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"] as const;
  const contents = { [names[0]]: part(0, "a"), [names[1]]: part(1, "b") };
  expect(await shown(join(folder(contents), names[0]))).toMatchObject({
    name: "tiny",
    parameters: 64,
    files: names.map((path) => ({ path, bytes: contents[path]!.length })),
  });
});

test("show finds a repo of the cache by its name", async () => {
  const snapshot = join(root, "hub", "models--org--tiny", "snapshots", "a".repeat(40));
  mkdirSync(snapshot, { recursive: true });
  writeFileSync(join(snapshot, "config.json"), json(config));
  writeFileSync(join(snapshot, "model.safetensors"), plain);
  expect(await shown("org/tiny")).toMatchObject({ name: "org/tiny", architecture: "llama" });
});

test("show says in one line what is wrong with a model", async () => {
  const noWeights = folder({ "config.json": json(config) });
  const noJson = folder({ "config.json": Buffer.from("{"), "model.safetensors": plain });
  const short = folder({ "config.json": json(config), "model.safetensors": plain.subarray(0, 50) });
  const noGguf = join(folder({ "x.gguf": Buffer.from("GGUF") }), "x.gguf");
  for (const [name, message] of [
    [noWeights, /expected model.safetensors or .* found neither$/],
    [noJson, /config.json: expected a JSON object$/],
    [short, /model.safetensors: expected a header/],
    [noGguf, /x.gguf: expected a header/],
    ["org/absent", /^org\/absent is not in the cache .* `mlx-serve pull org\/absent` brings it$/],
    ["--frobnicate", /--frobnicate/],
  ] as const) {
    await expect(show([name], env)).rejects.toThrow(message);
  }
});
