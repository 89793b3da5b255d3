import { describe, expect, test } from "bun:test";
import type { FloatType } from "../../../src/device/device.ts";
import { blockOf, type GgufType } from "../../../src/files/gguf.ts";
import { dequantize } from "../../../src/files/gguf-quants.ts";
import { LoadError } from "../../../src/files/load-error.ts";
import { array, liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import { type Dtype, type HostArray, hostArrays } from "../../../src/mlx/dtype.ts";
import {
  astype,
  type Quantization,
  type QuantizedMatrix,
  quantize,
  dequantize as unpack,
} from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import type { StoredTensor } from "../../../src/model/checkpoint/stored/tensor.ts";
import { loadDense, loadDequantized, loadRepacked } from "../../../src/model/weights/tensors.ts";
import { Weights } from "../../../src/model/weights/weights.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { randomNumbers } from "../../support/safetensors-file.ts";

useMlx();

type Order = StoredTensor["rowOrder"];

/** A tensor of these bytes, as a file would give it. */
function stored(
  format: StoredTensor["format"],
  shape: readonly number[],
  data: HostArray,
  rowOrder?: Order,
): StoredTensor {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  const read = (offset: number, target: Uint8Array) => {
    expect(offset + target.length).toBeLessThanOrEqual(bytes.length);
    target.set(bytes.subarray(offset, offset + target.length));
  };
  return { name: "w", shape, format, bytes: bytes.length, read, rowOrder };
}

/** Such that no f16 or f32 of them is infinite: their exponents lack a bit. */
const someBytes = Uint8Array.from(randomNumbers(65_521), (value) => (value * 128 + 128) & 0xbf);

function randomBlocks(type: GgufType, shape: readonly number[]): Uint8Array {
  const { items, bytes } = blockOf(type);
  const blocks = new Uint8Array((shape.reduce((a, b) => a * b) / items) * bytes);
  for (let at = 0; at < blocks.length; at += someBytes.length) {
    blocks.set(someBytes.subarray(0, blocks.length - at), at);
  }
  return blocks;
}

function decoded(type: GgufType, source: Uint8Array): Float32Array {
  const { items, bytes } = blockOf(type);
  const target = new Float32Array((source.length / bytes) * items);
  dequantize(type, source, target);
  return target;
}

/** The array's bits, which it is freed for. */
function bitsOf(loaded: MlxArray): Uint8Array {
  const { buffer } = loaded.data();
  loaded.free();
  return new Uint8Array(buffer as ArrayBuffer);
}

function sameBits(loaded: MlxArray, expected: HostArray): boolean {
  return Buffer.from(expected.buffer as ArrayBuffer).equals(bitsOf(loaded));
}

function reordered(values: Float32Array, columns: number, order: NonNullable<Order>): Float32Array {
  const moved = new Float32Array(values.length);
  for (let row = 0; row * columns < values.length; row++) {
    moved.set(values.subarray(row * columns, (row + 1) * columns), order(row) * columns);
  }
  return moved;
}

describe("loadDense", () => {
  const formats = { F32: "float32", F16: "float16", BF16: "bfloat16" } as const;
  const floats = ["float32", "float16", "bfloat16"] as const;

  /** Every 16-bit number but NaNs, whose payload is nobody's business. */
  function everyNumber(dtype: FloatType): HostArray {
    if (dtype === "float32") return randomNumbers(1 << 16, 3, 1e6);
    const exponent = dtype === "float16" ? 0x7c00 : 0x7f80;
    const isNaN = (bits: number) => (bits & 0x7fff) > exponent;
    const bits = Uint16Array.from({ length: 1 << 16 }, (_, i) => (isNaN(i) ? 0 : i));
    return new hostArrays[dtype](bits.buffer);
  }

  const pairs = Object.keys(formats).flatMap((format) =>
    floats.map((dtype) => [format as keyof typeof formats, dtype] as const),
  );
  test.each(pairs)("gives what MLX makes of %s as %s", (format, dtype) => {
    const data = everyNumber(formats[format]);
    using _ = new Scope();
    const expected = astype(array(data, [256, 256], formats[format]), dtype).data();
    for (const backend of ["cpu", "cuda"] as const) {
      const loaded = loadDense(stored(format, [256, 256], data), dtype, deviceOf(backend));
      expect([loaded.dtype, loaded.shape]).toEqual([dtype, [256, 256]]);
      expect(sameBits(loaded, expected)).toBe(true);
    }
  });

  const types: GgufType[] = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"];
  const superTypes: GgufType[] = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ3_XXS", "TQ1_0"];
  // More than one piece of 1 MiB, with rows that do not fill the last one.
  const shapes = [[4001, 1024], [3, 100, 256], [256]];
  test.each([...types, ...superTypes])("decodes %s piece by piece as a whole", (type) => {
    for (const shape of shapes) {
      const source = randomBlocks(type, shape);
      const loaded = loadDense(stored(type, shape, source), "float32", deviceOf("cpu"));
      expect(loaded.shape).toEqual(shape);
      expect(sameBits(loaded, decoded(type, source))).toBe(true);
    }
  });

  test("decodes rows that are larger than a piece", () => {
    const source = randomBlocks("Q4_0", [2, 2 ** 22]);
    const loaded = loadDense(stored("Q4_0", [2, 2 ** 22], source), "float32", deviceOf("cpu"));
    expect(sameBits(loaded, decoded("Q4_0", source))).toBe(true);
  });

  test("puts each row, of every piece, where it belongs", () => {
    const order = (row: number) => 4000 - row;
    for (const type of ["F32", "Q8_0", "Q4_1"] as const) {
      const source = randomBlocks(type, [4001, 1024]);
      const tensor = stored(type, [4001, 1024], source, order);
      const expected = reordered(decoded(type, source), 1024, order);
      expect(sameBits(loadDense(tensor, "float32", deviceOf("cpu")), expected)).toBe(true);
    }
  });

  test("takes the numbers of a vector for its rows", () => {
    const values = randomNumbers(64);
    const order = (row: number) => (row + 5) % 64;
    for (const dtype of floats) {
      const loaded = loadDense(stored("F32", [64], values, order), dtype, deviceOf("cpu"));
      const expected = loadDense(
        stored("F32", [64], reordered(values, 1, order)),
        dtype,
        deviceOf("cpu"),
      );
      expect(bitsOf(loaded)).toEqual(bitsOf(expected));
    }
  });

  test("names the tensor whose type it cannot decode, and frees what it had begun", () => {
    const before = liveArrays();
    const load = () =>
      loadDense(stored("Q8_1", [32], new Uint8Array(40)), "float32", deviceOf("cpu"));
    expect(load).toThrow(LoadError);
    expect(load).toThrow(/^w: weights of type Q8_1 are not supported; F32, .*$/);
    expect(liveArrays()).toBe(before);
  });
});

const formatOf: Partial<Record<Dtype, StoredTensor["format"]>> = {
  uint32: "U32",
  uint8: "U8",
  float32: "F32",
  float16: "F16",
  bfloat16: "BF16",
};

/** An array as a file would hold it. */
function fromArray(x: MlxArray): StoredTensor {
  return stored(formatOf[x.dtype]!, x.shape, x.data());
}

describe("loadDequantized", () => {
  const affine = [2, 3, 4, 5, 6, 8].flatMap((bits) =>
    [32, 64, 128].map((groupSize) => ({ mode: "affine", bits, groupSize }) as const),
  );
  const floats = [
    { mode: "mxfp4", bits: 4, groupSize: 32 },
    { mode: "mxfp8", bits: 8, groupSize: 32 },
    { mode: "nvfp4", bits: 4, groupSize: 16 },
  ] as const;

  function load(matrix: QuantizedMatrix, shape: number[], quantization: Required<Quantization>) {
    const parts = {
      weight: fromArray(matrix.weight),
      scales: fromArray(matrix.scales),
      biases: matrix.biases && fromArray(matrix.biases),
    };
    return loadDequantized({ ...parts, quantization }, shape, "float32", deviceOf("cpu"));
  }

  test.each([...affine, ...floats])(
    "gives MLX's numbers for $mode of $bits in $groupSize",
    (how) => {
      using _ = new Scope();
      // 1 MiB of float32 is 1024 rows: one piece and a part of a second.
      for (const shape of [
        [1030, 256],
        [3, 50, 256],
      ]) {
        const size = shape.reduce((a, b) => a * b);
        const matrix = quantize(array(randomNumbers(size), shape), how);
        const expected = unpack(matrix, how, "float32");
        expect(sameBits(load(matrix, shape, how), expected.data())).toBe(true);
      }
    },
  );

  test.each(["float16", "bfloat16"] as const)("does not round weights to %s scales", (dtype) => {
    using _ = new Scope();
    const how = { mode: "affine", bits: 4, groupSize: 64 } as const;
    const matrix = quantize(astype(array(randomNumbers(1030 * 256), [1030, 256]), dtype), how);
    expect(matrix.scales.dtype).toBe(dtype);
    const [scales, biases] = [matrix.scales, matrix.biases!].map((x) => astype(x, "float32"));
    const expected = unpack({ weight: matrix.weight, scales: scales!, biases }, how).data();
    expect(sameBits(load(matrix, [1030, 256], how), expected)).toBe(true);
  });
});

describe("loadRepacked", () => {
  const cases = (["Q4_0", "Q4_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"] as const).flatMap((type) =>
    (["metal", "cuda"] as const).map((backend) => [type, backend] as const),
  );
  test.each(cases)("keeps every number of %s for %s", (type, backend) => {
    const order = (row: number) => 4000 - row;
    const shapes: [number[], Order][] = [
      [[4001, 1024], undefined],
      [[4001, 1024], order],
      [[3, 100, 256], undefined],
    ];
    for (const [shape, rowOrder] of shapes) {
      const source = randomBlocks(type, shape);
      const values = decoded(type, source);
      const expected = rowOrder ? reordered(values, shape.at(-1)!, rowOrder) : values;
      const tensor = stored(type, shape, source, rowOrder);
      const { matrix, quantization } = loadRepacked(tensor, "float32", deviceOf(backend))!;
      using _ = new Scope();
      const found = unpack(matrix, quantization, "float32");
      expect(found.shape).toEqual(shape);
      const numbers = found.data() as Float32Array;
      // Equal, but for the sign of a zero.
      expect(numbers.findIndex((value, i) => value !== expected[i])).toBe(-1);
      for (const part of [matrix.weight, matrix.scales, matrix.biases]) part?.free();
    }
  });

  const affine = ["Q4_0", "Q4_1", "Q8_0", "TQ1_0", "TQ2_0"] as const;
  test.each(affine)("keeps every number of %s for a CPU, with scales of 16 bits", (type) => {
    const device = deviceOf("cpu");
    for (const rows of [320, 41]) {
      const source = randomBlocks(type, [rows, 512]);
      const loaded = loadRepacked(stored(type, [rows, 512], source), "float16", device)!;
      const { matrix, quantization } = loaded;
      using _ = new Scope();
      const tokens = array(Uint32Array.from({ length: rows }, (_, i) => i));
      const found = device.lookup({ kind: "packed", matrix, quantization }, tokens, "float32");
      const expected = decoded(type, source);
      expect(found.numbers().findIndex((value, i) => value !== expected[i])).toBe(-1);
      expect(loaded.isExact).toBe(true);
      for (const part of [matrix.weight, matrix.scales, matrix.biases]) part?.free();
    }
  });

  test("tells where 16 bits do not hold a bias, and a CPU keeps all bits of such a matrix", () => {
    const device = deviceOf("cpu");
    const source = randomBlocks("Q8_0", [64, 256]);
    new DataView(source.buffer, source.byteOffset).setFloat16(34 * 100, 1024, true);
    const tensor = { ...stored("Q8_0", [64, 256], source), name: "e.weight" };
    const { isExact, matrix } = loadRepacked(tensor, "float16", device)!;
    expect(isExact).toBe(false);
    for (const part of [matrix.weight, matrix.scales, matrix.biases]) part?.free();
    const tensors = new Map([[tensor.name, tensor]]);
    const made = { path: "e.gguf", format: "gguf", config: {}, tensors, close() {} } as const;
    const weights = new Weights(made, { device });
    using _ = new Scope();
    const tokens = array(
      Int32Array.from({ length: 64 }, (_, i) => i),
      [4, 16],
    );
    const found = weights.embedding("e", 64, 256).lookup(tokens);
    expect(found.shape).toEqual([4, 16, 256]);
    const expected = decoded("Q8_0", source);
    expect(found.numbers().findIndex((value, i) => value !== expected[i])).toBe(-1);
    weights.arrays.free();
  });

  test("leaves types of other layouts to others", () => {
    const blocks = randomBlocks("Q6_K", [1, 256]);
    expect(
      loadRepacked(stored("Q6_K", [1, 256], blocks), "float16", deviceOf("metal")),
    ).toBeUndefined();
  });
});
