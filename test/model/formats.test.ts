// Folders of other tools: each matrix has the numbers that the tool itself reads in it (scripts/goldens/formats.py).
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { array } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { Checkpoint, StoredTensor } from "../../src/model/checkpoint.ts";
import { asMlxLayout } from "../../src/model/quantized-folder.ts";
import { Weights } from "../../src/model/weights.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

/** In memory of its own, as hashes want it. */
type Numbers = Float32Array<ArrayBuffer>;

type Golden = {
  config: Record<string, unknown>;
  tensors: Record<string, [StoredTensor["format"], number[], string]>;
  shape: [number, number];
  sha256: string;
  first: number[];
};

const goldens: Record<string, Golden> = await Bun.file(
  join(import.meta.dir, "../golden/formats.json"),
).json();
const cases = Object.keys(goldens);

function checkpointOf(golden: Golden): Checkpoint {
  const tensors = new Map<string, StoredTensor>();
  for (const [name, [format, shape, base64]] of Object.entries(golden.tensors)) {
    const all = Uint8Array.fromBase64(base64);
    const read = (offset: number, target: Uint8Array) => {
      expect(offset + target.length).toBeLessThanOrEqual(all.length);
      target.set(all.subarray(offset, offset + target.length));
    };
    tensors.set(name, { name, format, shape, bytes: all.length, read });
  }
  const config = { model_type: "llama", quantization_config: golden.config };
  const converted = asMlxLayout(config, tensors);
  return { path: "golden", format: "safetensors", config, tensors: converted, close() {} };
}

/** Its rows, as an embedding would look them up, or its products with a row for each input. */
function weightsOf(golden: Golden, by: "lookup" | "product"): Numbers {
  const [outputs, inputs] = golden.shape;
  const weights = new Weights(checkpointOf(golden), { device: deviceOf("cpu") });
  using _ = new Scope();
  const found =
    by === "lookup"
      ? weights
          .embedding("m", outputs, inputs)
          .lookup(array(Int32Array.from({ length: outputs }, (_, i) => i)))
      : weights.linear("m", inputs, outputs)(identity(inputs));
  const numbers = Float32Array.from(found.numbers(), (value) => value + 0);
  weights.finish([]);
  weights.free();
  return numbers;
}

function identity(size: number) {
  const ones = new Float32Array(size * size);
  for (let i = 0; i < size; i++) ones[i * size + i] = 1;
  return array(ones, [size, size]);
}

function transposed(numbers: Float32Array, [rows, columns]: readonly [number, number]) {
  return Float32Array.from(numbers, (_, i) => {
    return numbers[(i % rows) * columns + Math.floor(i / rows)]!;
  });
}

function sha256(numbers: Numbers): string {
  return new Bun.CryptoHasher("sha256").update(numbers).digest("hex");
}

describe.each(cases)("%s", (name) => {
  const golden = goldens[name]!;
  const [outputs, inputs] = golden.shape;

  test("has the numbers that the tool reads", () => {
    const numbers = weightsOf(golden, "lookup");
    expect(Array.from(numbers.subarray(0, 8))).toEqual(golden.first);
    expect(sha256(numbers)).toBe(golden.sha256);
  });

  test("is multiplied by as it is looked up", () => {
    const products = weightsOf(golden, "product");
    expect(transposed(products, [inputs, outputs])).toEqual(weightsOf(golden, "lookup"));
  });

  test("reads the same in small pieces as at once", () => {
    for (const { bytes, read } of checkpointOf(golden).tensors.values()) {
      const [whole, pieces] = [new Uint8Array(bytes), new Uint8Array(bytes)];
      read(0, whole);
      for (let at = 0; at < bytes; at += 52) read(at, pieces.subarray(at, at + 52));
      expect(pieces).toEqual(whole);
    }
  });
});

test("only what MLX has no layout for is dequantized at load", () => {
  const dense = cases.filter((name) => !checkpointOf(goldens[name]!).tensors.has("m.scales"));
  const floats = /fp8|nvfp4/;
  const expected = cases.filter((name) => /act-order/.test(name) || floats.test(name));
  expect(dense).toEqual(expected.filter((name) => name !== "fp8 with exponents for 32"));
});
