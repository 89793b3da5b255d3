import { afterAll, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { show } from "../../src/cli/show.ts";
import type { LoadCheck } from "../../src/serve/load-check.ts";
import { LoopbackHub } from "../hub/loopback-hub.ts";
import { gguf, json, safetensors } from "../hub/small-models.ts";
import { folderFormats, quantizedLlama } from "../support/quantized-folder.ts";
import {
  llamaShapes,
  tinyConfig,
  tinyTensors,
  writeFolder,
  writeHollowFolder,
} from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = temporaryFolder();
afterAll(() => log.mockRestore());

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

/** The description, without whether it loads. */
async function shown(name: string): Promise<unknown> {
  const { load, ...model } = await shownWithLoad(name);
  return model;
}

/** What it says of a model that it may refuse behind it. */
async function shownWithLoad(name: string): Promise<{ load: LoadCheck }> {
  const error = await show([name, "--json"], env).catch((error: Error) => error);
  const model = JSON.parse(log.mock.calls.at(-1)![0]);
  if (!model.load.loads) expect((error as Error).message).toContain("does not load: ");
  return model;
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
  await expect(show([path], env)).rejects.toThrow("does not load: ");
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
  await expect(show([path], env)).rejects.toThrow("tiny.gguf does not load: ");
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
    "loads         no",
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
  env = { ...env, HF_HUB_OFFLINE: "1" };
  const noGguf = join(folder({ "x.gguf": Buffer.from("GGUF") }), "x.gguf");
  for (const [name, message] of [
    [noWeights, /expected model.safetensors or .* found neither$/],
    [noJson, /config.json does not contain a JSON object$/],
    [short, /model.safetensors: expected a header/],
    [noGguf, /x.gguf: the download is incomplete/],
    [
      "org/absent",
      /^org\/absent is not in the cache .* `mlx-serve pull org\/absent` downloads it$/,
    ],
    ["--frobnicate", /--frobnicate/],
  ] as const) {
    await expect(show([name], env)).rejects.toThrow(message);
  }
});

/** Of which the header is a small part of the file. */
const wideConfig = { ...tinyConfig, hidden_size: 640, intermediate_size: 640 };

/** A model that loads: random weights, and a tokenizer. */
function wholeModel(changed: object = {}): string {
  const path = mkdtempSync(join(root, "whole-"));
  writeFolder(path, { ...tinyConfig, ...changed }, tinyTensors());
  const { model } = JSON.parse(
    readFileSync(join(import.meta.dir, "../golden/text/sentence-piece-models.json"), "utf8"),
  ).bpe;
  writeFileSync(join(path, "tokenizer.model"), Buffer.from(model, "base64"));
  return path;
}

describe("show says whether a model will load", () => {
  test("and in what memory, at what length", async () => {
    const path = wholeModel();
    const { load } = await shownWithLoad(path);
    const shapes = Object.values(tinyTensors()).map(({ shape }) => shape);
    const weights = shapes.reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 4), 0);
    const { num_hidden_layers: layers, num_key_value_heads: heads } = tinyConfig;
    const headDim = tinyConfig.hidden_size / tinyConfig.num_attention_heads;
    expect(load).toMatchObject({
      loads: true,
      reasons: [],
      tokens: 800,
      plan: {
        weightBytes: weights,
        kv: [{ bytesPerToken: 2 * layers * heads * headDim * 4 }],
        stateBytes: 0,
        maxPositions: tinyConfig.max_position_embeddings,
        maxLength: tinyConfig.max_position_embeddings,
      },
    });
    await show([path], env);
    const text = log.mock.calls.at(-1)![0];
    expect(text).toMatch(/^loads {9}yes$/m);
    expect(text).toMatch(/^weights {7}[\d.]+ kB in memory, float32 on cpu$/m);
    expect(text).toMatch(/^KV cache {6}\d+ B per token$/m);
    expect(text).toMatch(/^tokenizer {5}800 tokens$/m);
  });

  test("and why not, all that is wrong at once", async () => {
    const unknown = wholeModel({ model_type: "unheard_of" });
    rmSync(join(unknown, "tokenizer.model"));
    const { load } = await shownWithLoad(unknown);
    expect(load).toMatchObject({
      loads: false,
      reasons: [
        expect.stringMatching(/^model_type "unheard_of" is not supported; there are /),
        expect.stringMatching(/expected a tokenizer in one of tokenizer.json, /),
      ],
    });
    expect(load).not.toHaveProperty("plan");

    const missing = wholeModel({ num_hidden_layers: 9 });
    await expect(show([missing], env)).rejects.toThrow(
      /does not load: .* tensor model.layers.* is missing/,
    );

    const broken = wholeModel();
    writeFileSync(join(broken, "tokenizer.model"), "?");
    await expect(show([broken], env)).rejects.toThrow(/tokenizer.model: field 7 has the unknown/);
  });

  test("and how much of its length there is memory for", async () => {
    const path = wholeModel({ max_position_embeddings: 2 ** 30 });
    const { load } = await shownWithLoad(path);
    // The pool is limited, not the model.
    expect(load.plan!.maxLength).toBeLessThan(2 ** 30);
    await show([path], env);
    expect(log.mock.calls.at(-1)![0]).toMatch(
      /^max length {4}\d+ tokens, of 1073741824 \(limited by memory\)/m,
    );
  });

  test("and that there is too little memory for it", async () => {
    const config = { ...tinyConfig, vocab_size: 2 ** 30 };
    const path = writeHollowFolder(wholeModel(), config, llamaShapes(config));
    const { load } = await shownWithLoad(path);
    expect(load.plan!.weightBytes).toBeGreaterThan(4 * 2 ** 30 * config.hidden_size);
    expect(load.reasons).toEqual([
      expect.stringMatching(
        /^the weights take [\d.]+ GiB, and KV blocks and steps at least .*, but [\d.]+ GiB of [\d.]+ GiB/,
      ),
    ]);
  });

  test("by its exit code", () => {
    const main = join(import.meta.dir, "../../src/main.ts");
    const exitCode = (path: string) =>
      Bun.spawnSync([process.execPath, main, "show", path], {
        env: { ...process.env, HF_HUB_OFFLINE: "1" },
      }).exitCode;
    expect(exitCode(wholeModel())).toBe(0);
    expect(exitCode(wholeModel({ model_type: "unheard_of" }))).toBe(1);
  });
});

describe("show reads of a repo that is not in the cache", () => {
  const hollows = () => readdirSync(tmpdir()).filter((name) => name.startsWith("mlx-serve-show-"));

  async function withHub(use: (hub: LoopbackHub) => Promise<void>): Promise<void> {
    const hub = await LoopbackHub.start();
    env = { ...env, HF_ENDPOINT: hub.url, HF_TOKEN: "hf_secret" };
    const before = hollows();
    try {
      await use(hub);
      expect(hollows()).toEqual(before);
    } finally {
      await hub.stop();
    }
  }

  const filesOf = (path: string) =>
    Object.fromEntries(
      readdirSync(path).map((name) => {
        const content = readFileSync(join(path, name));
        return [name, { content, big: name.endsWith(".safetensors") }];
      }),
    );

  test("the config and the headers of the weights, and nothing more", async () => {
    await withHub(async (hub) => {
      const path = wholeModel();
      const files = filesOf(path);
      const { content } = files["model.safetensors"]!;
      hub.add("org/other", { files });
      const here = await shownWithLoad(path);
      const there = await shownWithLoad("org/other");
      expect(there as object).toEqual({ ...here, name: "org/other", path: `${hub.url}/org/other` });
      expect(hub.requestsOf("model.safetensors").map(({ range }) => range)).toEqual([
        `bytes=0-${Math.min(content.length, 2 ** 20) - 1}`,
      ]);
    });
  });

  test("what says how matrices are quantized, once for all of a shape", async () => {
    await withHub(async (hub) => {
      for (const name of ["gptq with act-order", "compressed-tensors with 4 bits", "awq"]) {
        const { config, tensors } = quantizedLlama(folderFormats[name]!, wideConfig);
        const path = writeFolder(wholeModel(), config, tensors);
        const files = filesOf(path);
        hub.add("org/packed", { files });
        const here = await shownWithLoad(path);
        const there = await shownWithLoad("org/packed");
        expect(there.load).toEqual(here.load);
        expect(there.load.loads).toBe(true);
        const { content } = files["model.safetensors"]!;
        expect(content.length).toBeGreaterThan(2 ** 21);
        const asked = hub.requestsOf("model.safetensors");
        expect(asked.length).toBeLessThan(10);
        expect(hub.bytesOf("model.safetensors")).toBeLessThan(2 ** 20 + 2 ** 16);
        hub.served.length = 0;
      }
    });
  }, 120_000);

  test("long headers piece by piece, of a GGUF file too", async () => {
    await withHub(async (hub) => {
      const content = readFileSync(defaultModelPath());
      hub.add("org/gguf", { files: { "model.Q4_1.gguf": { content, big: true } } });
      const { load } = await shownWithLoad("org/gguf:Q4_1");
      expect(load).toMatchObject({ loads: true, tokens: 49_152 });
      expect(hub.bytesOf("model.Q4_1.gguf")).toBeLessThan(content.length / 10);
      const ranges = hub.requestsOf("model.Q4_1.gguf").map(({ range }) => range);
      expect(ranges).toEqual(["bytes=0-1048575", "bytes=1048576-4194303"]);
    });
  });

  test("from a hub that does not know ranges", async () => {
    await withHub(async (hub) => {
      const content = readFileSync(defaultModelPath());
      hub.add("org/gguf", { files: { "model.Q4_1.gguf": { content, big: true } } });
      hub.faults.set("model.Q4_1.gguf", [{ kind: "whole" }, { kind: "whole" }]);
      expect((await shownWithLoad("org/gguf")).load).toMatchObject({ loads: true });
    });
  });

  test("that it does not load, by its address", async () => {
    await withHub(async (hub) => {
      const path = wholeModel({ num_hidden_layers: 9 });
      hub.add("org/broken", { files: filesOf(path) });
      await expect(show(["org/broken"], env)).rejects.toThrow(
        `org/broken does not load: ${hub.url}/org/broken: tensor model.layers`,
      );
    });
  });

  test("nothing that is too large to be true", async () => {
    await withHub(async (hub) => {
      const files = filesOf(wholeModel());
      const listed = { bytes: 2 ** 30 };
      hub.add("org/lie", {
        files: { ...files, "config.json": { ...files["config.json"]!, listed } },
      });
      await expect(show(["org/lie"], env)).rejects.toThrow(/config.json has 1.1 GB$/);
      const content = readFileSync(defaultModelPath());
      hub.add("org/gguf", { files: { "a.gguf": { content, listed: { bytes: 2 ** 52 } } } });
      await expect(show(["org/gguf"], env)).rejects.toThrow(/a.gguf of 4.5 PB cannot be created/);
    });
  });

  test("that the hub has no such repo, or nothing to read", async () => {
    await withHub(async (hub) => {
      await expect(show(["org/absent"], env)).rejects.toThrow(/http\S+ has no org\/absent/);
      hub.add("org/empty", { files: { "README.md": { content: Buffer.from("x") } } });
      await expect(show(["org/empty"], env)).rejects.toThrow(/neither safetensors nor GGUF files/);
    });
  });
});
