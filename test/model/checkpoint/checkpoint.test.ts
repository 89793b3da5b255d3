import { describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readJson } from "../../../src/files/json.ts";
import { LoadError } from "../../../src/files/load-error.ts";
import { openCheckpoint } from "../../../src/model/checkpoint/checkpoint.ts";
import type { StoredTensor } from "../../../src/model/checkpoint/stored/tensor.ts";
import { type GgufFileTensor, writeGguf } from "../../support/gguf-file.ts";
import { f16, f32, randomNumbers, writeFolder } from "../../support/safetensors-file.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

const root = temporaryFolder();

/** How many files the process has open, where the system says so. */
function openFiles(): number {
  return existsSync("/proc/self/fd") ? readdirSync("/proc/self/fd").length : 0;
}

function bytesOf({ bytes, read }: StoredTensor, offset = 0): Uint8Array {
  const target = new Uint8Array(bytes - offset);
  read(offset, target);
  return target;
}

describe("openCheckpoint of a folder", () => {
  const [a, b, c] = [1, 2, 3].map((seed) => randomNumbers(12, seed));
  const tensors = { a: f32([3, 4], a!), b: f16([12], b!), c: f32([4, 3], c!) };
  const config = { model_type: "llama", hidden_size: 7 };

  test.each([1, 2, 3])("reads the tensors of %d files", (shards) => {
    const before = openFiles();
    const path = writeFolder(join(root, `shards-${shards}`), config, tensors, shards);
    const checkpoint = openCheckpoint(path);
    expect(checkpoint).toMatchObject({ path, format: "safetensors", config });
    expect([...checkpoint.tensors.keys()].sort()).toEqual(["a", "b", "c"]);
    const found = checkpoint.tensors.get("b")!;
    expect(found).toMatchObject({ name: "b", shape: [12], format: "F16", bytes: 24 });
    expect(bytesOf(found)).toEqual(new Uint8Array(new Float16Array(b!).buffer));
    expect(bytesOf(checkpoint.tensors.get("c")!, 8)).toEqual(new Uint8Array(c!.buffer).subarray(8));
    checkpoint.close();
    expect(openFiles()).toBe(before);
  });

  test("refuses a folder without a config.json, or without tensors, and leaves no file open", () => {
    const before = openFiles();
    const empty = join(root, "empty");
    mkdirSync(empty);
    expect(() => openCheckpoint(empty)).toThrow(new LoadError(`${empty}/config.json is missing`));
    writeFileSync(join(empty, "config.json"), "{}");
    expect(() => openCheckpoint(empty)).toThrow(/expected model.safetensors or .*, found neither$/);
    expect(openFiles()).toBe(before);
  });
});

describe("readJson refuses", () => {
  const path = join(root, "config.json");
  test.each(["", "{", "[]", "null", "3", '"text"', `${"[".repeat(1e5)}`])("%p", (text) => {
    writeFileSync(path, text);
    expect(() => readJson(path)).toThrow(new LoadError(`${path} does not contain a JSON object`));
  });

  test("a folder of that name", () => {
    const folder = join(root, "folder.json");
    mkdirSync(folder);
    expect(() => readJson(folder)).toThrow(new LoadError(`${folder}: not a file`));
  });
});

describe("openCheckpoint of a GGUF file", () => {
  const metadata = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
  };
  const plain = (shape: number[], seed = 1): GgufFileTensor => {
    const data = randomNumbers(
      shape.reduce((x, y) => x * y),
      seed,
    );
    return { type: "F32", shape, data };
  };
  const path = join(root, "model.gguf");

  test("gives tensors the names of Hugging Face, and reads their bytes", () => {
    const before = openFiles();
    const [embedding, k] = [plain([5, 32]), plain([32, 32], 2)];
    const tensors = { "token_embd.weight": embedding, "blk.0.attn_k.weight": k };
    const checkpoint = openCheckpoint(writeGguf(path, { metadata, tensors }));
    expect(checkpoint).toMatchObject({ path, format: "gguf" });
    expect(checkpoint.config).toMatchObject({ model_type: "llama", vocab_size: 5, head_dim: 16 });
    const [first, second] = [...checkpoint.tensors.values()];
    const name = "model.embed_tokens.weight";
    expect(first).toMatchObject({ name, shape: [5, 32], format: "F32", rowOrder: undefined });
    expect(bytesOf(first!)).toEqual(new Uint8Array(embedding.data.buffer as ArrayBuffer));
    expect(second!.name).toBe("model.layers.0.self_attn.k_proj.weight");
    expect([0, 1, 2, 16, 31].map(second!.rowOrder!)).toEqual([0, 8, 1, 16, 31]);
    checkpoint.close();
    expect(openFiles()).toBe(before);
  });

  test("makes the factors of its frequencies part of the configuration", () => {
    const factors = Float32Array.of(1, 1, 1, 1.5, 2, 4, 8, 8);
    const freqs: GgufFileTensor = { type: "F32", shape: [8], data: factors };
    const tensors = { "token_embd.weight": plain([5, 32]), "rope_freqs.weight": freqs };
    const checkpoint = openCheckpoint(writeGguf(path, { metadata, tensors }));
    checkpoint.close();
    expect(checkpoint.config.rope_scaling).toMatchObject({ long_factor: Array.from(factors) });
    expect([...checkpoint.tensors.keys()]).toEqual(["model.embed_tokens.weight"]);
  });

  test("refuses what it cannot make sense of, and leaves no file open", () => {
    const before = openFiles();
    const cases: [Record<string, GgufFileTensor>, object, RegExp][] = [
      [{ a: plain([2]) }, { "general.architecture": "rwkv6" }, /"rwkv6" is not supported/],
      [{ a: plain([2]) }, { "llama.rope.scaling.type": "x" }, /rope.scaling.type is "x"$/],
      [
        { "blk.0.ffn_norm.weight": plain([32]), "blk.0.post_attention_norm.weight": plain([32]) },
        JSON.parse(JSON.stringify(metadata).replaceAll("llama", "olmo2")),
        /"blk.0.post_attention_norm.weight" appears twice$/,
      ],
      [
        { "rope_freqs.weight": { type: "Q8_1", shape: [32], data: new Uint8Array(40) } },
        {},
        /weights of type Q8_1 are not supported/,
      ],
    ];
    for (const [tensors, others, message] of cases) {
      writeGguf(path, { metadata: { ...metadata, ...others }, tensors });
      expect(() => openCheckpoint(path)).toThrow(LoadError);
      expect(() => openCheckpoint(path)).toThrow(message);
    }
    expect(openFiles()).toBe(before);
  });
});
