// Folders of other tools: each matrix has the numbers that the tool itself reads in it (scripts/goldens/formats.py).
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { array, type MlxArray } from "../../../src/mlx/array.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import type { Checkpoint } from "../../../src/model/checkpoint/checkpoint.ts";
import { asMlxLayout } from "../../../src/model/checkpoint/quantized-folder.ts";
import type { StoredTensor } from "../../../src/model/checkpoint/stored/tensor.ts";
import { Weights } from "../../../src/model/weights/weights.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";

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
  join(import.meta.dir, "../../golden/formats.json"),
).json();
const cases = Object.keys(goldens);

function checkpointOf(golden: Golden, matrix = "m"): Checkpoint {
  const tensors = new Map<string, StoredTensor>();
  for (const [stored, [format, shape, base64]] of Object.entries(golden.tensors)) {
    const name = stored.replace(/^m\./, `${matrix}.`);
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

/** Its rows, as an embedding looks them up, or from products with a row for each input. */
function weightsOf(golden: Golden, by: "lookup" | "product", matrix = "m"): Numbers {
  const [outputs, inputs] = golden.shape;
  const weights = new Weights(checkpointOf(golden, matrix), { device: deviceOf("cpu") });
  using _ = new Scope();
  const found =
    by === "lookup"
      ? weights
          .embedding(matrix, outputs, inputs)
          .lookup(array(Int32Array.from({ length: outputs }, (_, i) => i)))
          .numbers()
      : withIdentity(weights.linear(matrix, inputs, outputs), inputs);
  const numbers = Float32Array.from(found, (value) => value + 0);
  weights.stored.finish([]);
  weights.arrays.free();
  return by === "lookup" ? numbers : transposed(numbers, [inputs, outputs]);
}

/** Of few rows at a time: with more of them products may round the weights. */
function withIdentity(product: (rows: MlxArray) => MlxArray, size: number): number[] {
  const each = 8;
  return Array.from({ length: size / each }, (_, part) => {
    const ones = new Float32Array(each * size);
    for (let i = 0; i < each; i++) ones[i * size + part * each + i] = 1;
    return product(array(ones, [each, size])).numbers();
  }).flat();
}

function transposed(numbers: Numbers, [rows, columns]: readonly [number, number]): Numbers {
  return Float32Array.from(numbers, (_, i) => {
    return numbers[(i % rows) * columns + Math.floor(i / rows)]!;
  });
}

function sha256(numbers: Numbers): string {
  return new Bun.CryptoHasher("sha256").update(numbers).digest("hex");
}

describe.each(cases)("%s", (name) => {
  const golden = goldens[name]!;

  // The columns of act-order are in another order than the inputs, which only a product puts right.
  const ways = /act-order/.test(name) ? (["product"] as const) : (["lookup", "product"] as const);
  test.each(ways)("has the numbers that the tool reads, by %s", (by) => {
    const numbers = weightsOf(golden, by);
    expect(Array.from(numbers.subarray(0, 8))).toEqual(golden.first);
    expect(sha256(numbers)).toBe(golden.sha256);
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

test("a block may be written as text", () => {
  const golden = goldens["compressed-tensors fp8, in blocks"]!;
  const text = JSON.stringify(golden.config).replace("[32,32]", '"32x32"');
  const config = JSON.parse(text);
  expect(config).not.toEqual(golden.config);
  expect(sha256(weightsOf({ ...golden, config }, "lookup"))).toBe(golden.sha256);
});

test("matrices of experts have scales of their own, under a name without a kind", () => {
  const golden = goldens["fp8 in blocks"]!;
  const { "m.weight": weight, "m.weight_scale_inv": scale } = golden.tensors;
  const bytes = Uint8Array.fromBase64(weight![2]);
  const scales = new Float32Array(Uint8Array.fromBase64(scale![2]).buffer);
  const twice = Float32Array.from([...scales, ...scales.map((each) => 2 * each)]);
  const stacked: Golden = {
    ...golden,
    tensors: {
      "m.gate_up_proj": [weight![0], [2, ...weight![1]], Buffer.concat([bytes, bytes]).toBase64()],
      "m.gate_up_proj_scale_inv": [
        "F32",
        [2, ...scale![1]],
        new Uint8Array(twice.buffer).toBase64(),
      ],
    },
  };
  const { tensors } = checkpointOf(stacked);
  expect([...tensors.keys()]).toEqual(["m.gate_up_proj"]);
  const { read, bytes: size } = tensors.get("m.gate_up_proj")!;
  const target = new Uint8Array(size);
  read(0, target);
  const numbers = new Float32Array(target.buffer).map((value) => value + 0);
  const half = numbers.length / 2;
  expect(sha256(numbers.slice(0, half))).toBe(golden.sha256);
  expect(numbers.slice(half)).toEqual(numbers.slice(0, half).map((value) => 2 * value));
});

test("only what MLX has no layout for is dequantized at load", () => {
  const dense = cases.filter((name) => !checkpointOf(goldens[name]!).tensors.has("m.scales"));
  const floats = cases.filter((name) => / fp8|^fp8|nvfp4/.test(name));
  expect(dense).toEqual(floats.filter((name) => name !== "fp8 with exponents for 32"));
});

test("an expert's matrix with act-order is dequantized, since experts share their input", () => {
  for (const name of ["gptq 3 bits, act-order", "compressed-tensors 4 bits, act-order"]) {
    const golden = goldens[name]!;
    const expert = "model.layers.0.mlp.experts.3.up_proj";
    expect([...checkpointOf(golden, expert).tensors.keys()]).toEqual([`${expert}.weight`]);
    expect(sha256(weightsOf(golden, "lookup", expert))).toBe(golden.sha256);
  }
});

test("a matrix with groups of unlike size is dequantized", () => {
  const golden = goldens["gptq 4 bits, act-order"]!;
  const { "m.g_idx": order, ...others } = golden.tensors;
  const shape = order![1];
  const first = new Uint8Array(4 * shape[0]!).toBase64();
  const uneven: Golden = { ...golden, tensors: { ...others, "m.g_idx": ["I32", shape, first] } };
  expect([...checkpointOf(uneven).tensors.keys()]).toEqual(["m.weight"]);
});
