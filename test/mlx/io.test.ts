import { expect, test } from "bun:test";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MlxError } from "../../ffi/error.ts";
import { defaultModelPath } from "../../ffi/native.ts";
import { array } from "../../src/mlx/array.ts";
import { GgufFile, loadSafetensors, saveSafetensors } from "../../src/mlx/io.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const file = (name: string) => join(mkdtempSync(join(tmpdir(), "io-")), name);

test("arrays and metadata come back from a safetensors file as they were saved", () => {
  using _ = new Scope();
  const path = file("weights.safetensors");
  const arrays = {
    "a.weight": array([1, 2, 3, 4, 5, 6], [2, 3]),
    "a.ids": array(new Uint32Array([7, 2 ** 32 - 1])),
    "ä.half": array([0.5, -1.5], [2], "bfloat16"),
  };
  saveSafetensors(path, new Map(Object.entries(arrays)), { format: "mlx", note: "größe" });
  const loaded = loadSafetensors(path);
  expect(loaded.metadata).toEqual({ format: "mlx", note: "größe" });
  expect([...loaded.arrays.keys()].sort()).toEqual(Object.keys(arrays).sort());
  for (const [name, saved] of Object.entries(arrays)) {
    const found = loaded.arrays.get(name)!;
    expect([found.dtype, found.shape, found.numbers()]).toEqual([
      saved.dtype,
      saved.shape,
      saved.numbers(),
    ]);
  }
});

test("a safetensors file written elsewhere is read", () => {
  using _ = new Scope();
  const path = file("hand.safetensors");
  const header = JSON.stringify({ w: { dtype: "F32", shape: [2], data_offsets: [0, 8] } });
  const bytes = new Uint8Array(8 + header.length + 8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(header.length), true);
  bytes.set(new TextEncoder().encode(header), 8);
  bytes.set(new Uint8Array(new Float32Array([1.5, -2]).buffer), 8 + header.length);
  writeFileSync(path, bytes);
  expect(loadSafetensors(path).arrays.get("w")!.numbers()).toEqual([1.5, -2]);
});

test("a file that is no safetensors file is refused", () => {
  using _ = new Scope();
  const path = file("noise.safetensors");
  writeFileSync(path, "this is not a tensor, nor are these");
  expect(() => loadSafetensors(path)).toThrow(MlxError);
  expect(() => loadSafetensors(file("absent.safetensors"))).toThrow("ENOENT");
});

test("saving where nothing can be written is an error", () => {
  using _ = new Scope();
  const save = () => saveSafetensors("/nowhere/x.safetensors", new Map([["a", array([1])]]));
  expect(save).toThrow(MlxError);
});

test("a GGUF file gives its tensors and its metadata", () => {
  using _ = new Scope();
  using gguf = new GgufFile(defaultModelPath());
  expect(gguf.names).toContain("token_embd.weight");
  expect(gguf.text("general.architecture")).toBe("llama");
  expect(gguf.numbers("llama.block_count").item()).toBe(30);
  expect(gguf.texts("tokenizer.ggml.tokens")).toHaveLength(49152);
  expect(gguf.array("blk.0.attn_norm.weight").shape).toEqual([576]);
  // Four-bit weights stay packed, eight to a word.
  const packed = gguf.array("blk.0.attn_q.weight");
  expect([packed.dtype, packed.shape]).toEqual(["uint32", [576, 72]]);
});

test("a key that a GGUF file lacks, or has with another type, is named", () => {
  using _ = new Scope();
  using gguf = new GgufFile(defaultModelPath());
  expect(() => gguf.array("blk.99.attn_q.weight")).toThrow("has no blk.99.attn_q.weight");
  expect(() => gguf.text("llama.block_count")).toThrow("llama.block_count has another type");
  expect(() => gguf.numbers("general.architecture")).toThrow("has another type");
  expect(() => gguf.texts("no.such.key")).toThrow("has no no.such.key");
});

test("a file that is no GGUF file is refused", () => {
  expect(() => new GgufFile(import.meta.path)).toThrow(MlxError);
  expect(() => new GgufFile("/nowhere.gguf")).toThrow(MlxError);
});
