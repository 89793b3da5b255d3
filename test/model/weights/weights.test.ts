import { describe, expect, test } from "bun:test";
import type { Backend } from "../../../ffi/native.ts";
import type { Gating } from "../../../src/device/device.ts";
import { LoadError } from "../../../src/files/load-error.ts";
import { array, evaluate, liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import { panelRows } from "../../../src/mlx/cpu.ts";
import { plannedGroup } from "../../../src/mlx/distributed.ts";
import type { Dtype, HostArray } from "../../../src/mlx/dtype.ts";
import { activeMemory } from "../../../src/mlx/memory.ts";
import {
  arange,
  astype,
  concatenate,
  dequantize,
  type Quantization,
  quantize,
  slice,
  subtract,
} from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import type { Checkpoint } from "../../../src/model/checkpoint/checkpoint.ts";
import type { StoredTensor } from "../../../src/model/checkpoint/stored/tensor.ts";
import type { Slice } from "../../../src/model/weights/extents.ts";
import { type WeightOptions, Weights } from "../../../src/model/weights/weights.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { bf16, type FileTensors, f16, f32, randomNumbers } from "../../support/safetensors-file.ts";

useMlx();

/** A checkpoint of these tensors, as if they had been read from files. */
function checkpoint(tensors: FileTensors, fields: Partial<Checkpoint> = {}): Checkpoint {
  const stored = Object.entries(tensors).map(([name, { dtype, shape, data }]) => {
    const { buffer, byteOffset, byteLength } = typeof data === "function" ? data() : data;
    const bytes = new Uint8Array(buffer, byteOffset, byteLength);
    const read = (offset: number, target: Uint8Array) =>
      target.set(bytes.subarray(offset, offset + target.length));
    return [name, { name, shape, format: dtype, bytes: byteLength, read }] as const;
  });
  return {
    path: "here",
    format: "safetensors",
    config: {},
    tensors: new Map<string, StoredTensor>(stored),
    close() {},
    ...fields,
  };
}

function weightsOf(tensors: FileTensors, options: Partial<WeightOptions> = {}): Weights {
  return new Weights(checkpoint(tensors), { device: deviceOf("cpu"), ...options });
}

/** The numbers of what `use` makes of the weights, which are freed. */
function numbers(weights: Weights, use: (weights: Weights) => MlxArray): number[] {
  using _ = new Scope();
  try {
    return use(weights).numbers();
  } finally {
    weights.arrays.free();
  }
}

function expectClose(found: readonly number[], expected: readonly number[], within: number) {
  const largest = Math.max(...expected.map(Math.abs));
  const worst = Math.max(...found.map((value, i) => Math.abs(value - expected[i]!)));
  expect(found.length).toBe(expected.length);
  expect(worst / largest).toBeLessThan(within);
}

/** `name`.weight, .scales and .biases as MLX packs a matrix. */
function packed(name: string, shape: number[], how: Quantization, seed = 1): FileTensors {
  using _ = new Scope();
  const size = shape.reduce((a, b) => a * b);
  const half = astype(array(randomNumbers(size, seed), shape), "bfloat16");
  const { weight, scales, biases } = quantize(half, how);
  evaluate(weight, scales);
  const words = (x: MlxArray) => ({ dtype: "U32", shape: x.shape, data: x.data() }) as const;
  const small = (x: MlxArray) =>
    ({ dtype: x.dtype === "uint8" ? "U8" : "BF16", shape: x.shape, data: x.data() }) as const;
  return {
    [`${name}.weight`]: words(weight),
    [`${name}.scales`]: small(scales),
    ...(biases ? { [`${name}.biases`]: small(biases) } : {}),
  };
}

/** The same matrices in float32. */
function unpacked(tensors: FileTensors, how: Quantization): FileTensors {
  using _ = new Scope();
  const made: FileTensors = {};
  for (const [key, { shape, data, dtype }] of Object.entries(tensors)) {
    if (dtype === "F32") made[key] = { shape, data, dtype };
    if (dtype !== "U32") continue;
    const part = (kind: string, type: Dtype) => {
      const stored = tensors[key.replace("weight", kind)]!;
      return array(stored.data as HostArray, stored.shape, type);
    };
    const exact = (kind: string) => astype(part(kind, "bfloat16"), "float32");
    const matrix = {
      weight: part("weight", "uint32"),
      scales: exact("scales"),
      biases: exact("biases"),
    };
    const dense = dequantize(matrix, how, "float32");
    made[key] = f32(dense.shape, dense.data() as Float32Array);
  }
  return made;
}

const x = randomNumbers(3 * 4, 9);
const w = randomNumbers(6 * 4, 2);
const product = (row: number, out: number) =>
  [0, 1, 2, 3].reduce((sum, i) => sum + x[row * 4 + i]! * w[out * 4 + i]!, 0);
const products = [0, 1, 2].flatMap((row) => [0, 1, 2, 3, 4, 5].map((out) => product(row, out)));

describe("Weights", () => {
  test("makes a linear layer of a matrix, and of its bias where there is one", () => {
    const bias = randomNumbers(6, 5);
    const plain = { "p.weight": f32([6, 4], w) };
    const biased = { ...plain, "p.bias": f32([6], bias) };
    const run = (weights: Weights) => weights.linear("p", 4, 6)(array(x, [3, 4]));
    expectClose(numbers(weightsOf(plain), run), products, 1e-6);
    const sums = products.map((value, i) => value + bias[i % 6]!);
    expectClose(numbers(weightsOf(biased), run), sums, 1e-6);
  });

  test("makes an embedding of a matrix, and the output of the same one", () => {
    const tensors = { "e.weight": f32([6, 4], w) };
    const rows = numbers(weightsOf(tensors), (weights) =>
      weights.embedding("e", 6, 4).lookup(array(Int32Array.of(5, 0, 5))),
    );
    const row = (i: number) => Array.from(w.subarray(i * 4, i * 4 + 4));
    expect(rows).toEqual([row(5), row(0), row(5)].flat());
    const logits = numbers(weightsOf(tensors), (weights) =>
      weights.embedding("e", 6, 4).asLinear(array(x, [3, 4])),
    );
    expectClose(logits, products, 1e-6);
  });

  test("makes experts of stacked matrices, with their biases", () => {
    const bias = randomNumbers(6, 5);
    const tensors = { "x.weight": f32([2, 3, 4], w), "x.bias": f32([2, 3], bias) };
    const found = numbers(weightsOf(tensors), (weights) => {
      const chosen = array(Int32Array.of(1, 0, 1));
      return weights.experts("x", 2, 4, 3)(array(x, [3, 4]), chosen);
    });
    const expected = [1, 0, 1].flatMap((expert, token) =>
      [0, 1, 2].map((out) => product(token, expert * 3 + out) + bias[expert * 3 + out]!),
    );
    expectClose(found, expected, 1e-6);
  });

  test.each(["F32", "F16"])("joins experts, in one format or with a second of %s", (format) => {
    const up = randomNumbers(6 * 4, 3).map((value) => new Float16Array([value])[0]!);
    const bias = randomNumbers(6, 5);
    const tensors = {
      "gate.weight": f32([2, 3, 4], w),
      "gate.bias": f32([2, 3], bias),
      "up.weight": (format === "F16" ? f16 : f32)([2, 3, 4], up),
      "up.bias": f32([2, 3], bias.toReversed()),
    };
    const run = (gating?: Gating) =>
      numbers(weightsOf(tensors), (weights) => {
        const linear = weights.joinedExperts("both", ["gate", "up"], 2, 4, 3);
        return linear(array(x, [3, 4]), array(Int32Array.of(1, 0, 0, 0, 1, 1)), { gating });
      });
    const half = (values: ArrayLike<number>, added: ArrayLike<number>, row: number, out: number) =>
      [0, 1, 2, 3].reduce((sum, i) => sum + x[row * 4 + i]! * values[out * 4 + i]!, added[out]!);
    const halves = [1, 0, 0, 0, 1, 1].map((expert, i) =>
      [0, 1, 2].map((out) => {
        const [row, at] = [Math.floor(i / 2), expert * 3 + out];
        return [half(w, bias, row, at), half(up, bias.toReversed(), row, at)] as const;
      }),
    );
    const both = halves.flatMap((row) => [...row.map(([g]) => g), ...row.map(([, u]) => u)]);
    expectClose(run(), both, 1e-6);
    const gated = halves.flat().map(([g, u]) => (g / (1 + Math.exp(-g))) * u);
    expectClose(run("swiglu"), gated, 1e-5);
    expectClose(
      run((gate, up) => subtract(gate, up)),
      halves.flat().map(([g, u]) => g - u),
      1e-5,
    );
  });

  const modes = ["affine", "mxfp4", "mxfp8", "nvfp4"] as const;
  const backends = ["metal", "cuda"] as const;
  const pairs = modes.flatMap((mode) => backends.map((backend) => [mode, backend] as const));
  test.each(pairs)("computes with %s left packed for %s as with float32", (mode, backend) => {
    const tensors = {
      ...packed("p", [64, 128], { mode }),
      ...packed("x", [4, 64, 128], { mode }, 2),
    };
    const load = (on: Backend) => weightsOf(tensors, { device: deviceOf(on), dtype: "float32" });
    const input = randomNumbers(5 * 128, 4);
    const uses: ((weights: Weights) => MlxArray)[] = [
      (weights) => weights.linear("p", 128, 64)(array(input, [5, 128])),
      (weights) => weights.embedding("p", 64, 128).lookup(array(Int32Array.of(63, 1))),
      (weights) => weights.embedding("p", 64, 128).asLinear(array(input, [5, 128])),
      (weights) => {
        const chosen = array(Int32Array.of(3, 0, 1, 2, 3));
        return weights.experts("x", 4, 128, 64)(array(input, [5, 128]), chosen);
      },
    ];
    for (const use of uses)
      expectClose(numbers(load(backend), use), numbers(load("cpu"), use), 1e-5);
    const small = load(backend);
    small.linear("p", 128, 64);
    expect(small.arrays.bytes).toBeLessThan((64 * 128 * 4) / 3);
    small.arrays.free();
  });

  const packings = [4, 8].flatMap((bits) => [32, 64, 128].map((groupSize) => [bits, groupSize]));
  test.each(packings)("leaves %i bits in groups of %i packed on a CPU", (bits, groupSize) => {
    const how = { mode: "affine", bits, groupSize } as const;
    const bias = randomNumbers(64, 5);
    const tensors = {
      ...packed("p", [64, 128], how),
      "p.bias": f32([64], bias),
      ...packed("q", [32, 128], how, 2),
      ...packed("x", [4, 32, 128], how, 3),
      ...packed("y", [4, 32, 128], how, 4),
    };
    const input = randomNumbers(5 * 128, 4);
    const run = (weights: Weights) => {
      const [p, q] = [weights.linear("p", 128, 64), weights.linear("q", 128, 32)];
      const x = array(input, [5, 128]);
      const [e, found] = [
        weights.joinedExperts("xy", ["x", "y"], 4, 128, 32),
        weights.embedding("q", 32, 128).lookup(arange(0, 5)),
      ];
      const made = e(x, array(Int32Array.of(2, 0, 2, 2, 3)));
      return concatenate([p(x), q(x), found, made], -1);
    };
    const found = numbers(weightsOf(tensors), run);
    expectClose(found, numbers(weightsOf(unpacked(tensors, how)), run), 1e-5);
    const weights = weightsOf(tensors);
    weights.linear("p", 128, 64);
    // In panels scales and biases have as many bits as in the file.
    const each = panelRows() > 0 ? 2 : 4;
    const bytes = (64 * 128 * bits) / 8 + (2 * each * 64 * 128) / groupSize;
    expect(weights.arrays.bytes).toBe(bytes + 64 * 4);
    // Four experts with two matrices of half the rows.
    weights.joinedExperts("xy", ["x", "y"], 4, 128, 32);
    expect(weights.arrays.bytes).toBe(5 * bytes + 64 * 4);
    weights.arrays.free();
  });

  test("leaves mxfp4 packed on a CPU", () => {
    const weights = weightsOf({
      ...packed("p", [64, 128], { mode: "mxfp4" }),
      ...packed("x", [4, 64, 128], { mode: "mxfp4" }),
    });
    weights.linear("p", 128, 64);
    weights.experts("x", 4, 128, 64);
    // A scale is a byte.
    expect(weights.arrays.bytes).toBe(5 * 64 * 128 * (0.5 + 1 / 32));
    weights.arrays.free();
  });

  test("unpacks on a CPU what there is no product for", () => {
    const six = { mode: "affine", bits: 6 } as const;
    const tensors = {
      ...packed("six", [64, 128], six),
      ...packed("float", [64, 128], { mode: "mxfp8" }),
      ...packed("x", [4, 64, 128], { mode: "nvfp4" }),
    };
    const weights = weightsOf(tensors);
    weights.linear("six", 128, 64);
    weights.linear("float", 128, 64);
    weights.experts("x", 4, 128, 64);
    expect(weights.arrays.bytes).toBe(6 * 64 * 128 * 4);
    weights.arrays.free();
  });

  test.each(modes)("computes with %s left packed for few rows and unpacked for many", (mode) => {
    // 40 columns are nothing for a kernel of our own.
    const bias = f32([40], randomNumbers(40, 5));
    const tensors = { ...packed("p", [40, 128], { mode }), ...packed("b", [40, 128], { mode }, 2) };
    const run = (
      backend: Backend,
      rows: number,
      dtype: "float32" | "float16",
      keepDequantized = false,
    ) => {
      const options = { device: deviceOf(backend), dtype, keepDequantized };
      const weights = weightsOf({ ...tensors, "b.bias": bias }, options);
      return numbers(weights, () => {
        const [p, b] = [weights.linear("p", 128, 40), weights.linear("b", 128, 40)];
        const x = astype(array(randomNumbers(rows * 128, 4), [rows, 128]), dtype);
        const made = b(x, { residual: p(x) });
        expect([made.shape, made.dtype]).toEqual([[rows, 40], dtype]);
        return p(x, { residual: made });
      });
    };
    for (const rows of [1, 2, 3, 70]) {
      const expected = run("cpu", rows, "float32");
      const found = run("cuda", rows, "float16");
      expectClose(found, expected, 4e-3);
      expect(run("cuda", rows, "float16", true)).toEqual(found);
    }
    const bytes = (keepDequantized: boolean) => {
      const weights = weightsOf(tensors, {
        device: deviceOf("cuda"),
        dtype: "float16",
        keepDequantized,
      });
      weights.linear("p", 128, 40);
      const { bytes } = weights.arrays;
      weights.arrays.free();
      return bytes;
    };
    expect(bytes(true) - bytes(false)).toBe(40 * 128 * 2);
  });

  test("computes in float32 on a CPU, and elsewhere in the type of the file", () => {
    const dtypeOf = (fields: Partial<Checkpoint>, backend: Backend, tensors: FileTensors = {}) =>
      new Weights(checkpoint(tensors, fields), { device: deviceOf(backend) }).dtype;
    const bfloat16 = { config: { torch_dtype: "bfloat16" } };
    expect(dtypeOf(bfloat16, "cpu")).toBe("float32");
    expect(dtypeOf(bfloat16, "metal")).toBe("bfloat16");
    expect(dtypeOf({ config: { dtype: "float16" } }, "cuda")).toBe("float16");
    expect(dtypeOf({ format: "gguf" }, "cuda")).toBe("float16");
    const norm = { "model.norm.weight": f16([4], x.subarray(0, 4)) };
    expect(dtypeOf({}, "metal", norm)).toBe("float16");
    expect(dtypeOf({ config: { torch_dtype: "int3" } }, "metal")).toBe("bfloat16");
    const loaded = new Weights(checkpoint(norm, bfloat16), { device: deviceOf("metal") });
    expect(loaded.arrays.tensor("model.norm.weight", [4]).dtype).toBe("bfloat16");
    loaded.arrays.free();
  });

  test("says how much is loaded, up to all there is", () => {
    const calls: [number, number][] = [];
    const onProgress = (loaded: number, total: number) => calls.push([loaded, total]);
    const tensors = {
      ...packed("p", [64, 128], { mode: "affine" }),
      "n.weight": bf16([4], x.subarray(0, 4)),
    };
    const weights = weightsOf(tensors, { onProgress });
    weights.arrays.tensor("n.weight", [4]);
    weights.linear("p", 128, 64);
    const total = 8 + 64 * 128 * 0.5 + 2 * 64 * 2 * 2;
    expect(calls.map(([loaded]) => loaded)).toEqual([8, 8 + 4096, total - 256, total]);
    expect(new Set(calls.map(([, all]) => all))).toEqual(new Set([total]));
    weights.arrays.free();
  });

  test("gives back all of its memory, once", () => {
    const [before, memory] = [liveArrays(), activeMemory()];
    const weights = weightsOf({ "p.weight": f32([512, 512], randomNumbers(512 * 512)) });
    weights.linear("p", 512, 512);
    weights.arrays.constant(Float32Array.of(1, 2));
    expect(weights.arrays.bytes).toBe(512 * 512 * 4);
    expect(activeMemory() - memory).toBeGreaterThanOrEqual(weights.arrays.bytes);
    weights.arrays.free();
    weights.arrays.free();
    expect([liveArrays(), activeMemory(), weights.arrays.bytes]).toEqual([before, memory, 0]);
  });
});

describe("Weights under other names and in another order", () => {
  const rows = { "h.0.c.weight": f32([3, 2], Float32Array.of(0, 1, 2, 3, 4, 5)) };

  test("replaces parts of names, one after the other", () => {
    const weights = weightsOf(rows);
    weights.stored.renameParts({ "h.": "layers.", ".c.": ".down." });
    expect(numbers(weights, (own) => own.arrays.tensor("layers.0.down.weight", [3, 2]))).toEqual([
      0, 1, 2, 3, 4, 5,
    ]);
    expect(weights.stored.has("h.0.c.weight")).toBe(false);
  });

  test("refuses what has another name and is not asked for", () => {
    const weights = weightsOf(rows);
    weights.stored.renameParts({ "h.": "layers." });
    expect(() => weights.stored.finish([])).toThrow('has no place for tensor "layers.0.c.weight"');
    weights.arrays.free();
  });

  test("puts rows in another order, under the same name", () => {
    const weights = weightsOf(rows);
    weights.matrices.reorder("h.0.c", [
      { first: 2, count: 1 },
      { first: 0, count: 2 },
    ]);
    expect(numbers(weights, (own) => own.arrays.tensor("h.0.c.weight", [3, 2]))).toEqual([
      4, 5, 0, 1, 2, 3,
    ]);
  });

  test("leaves out what no part asks for", () => {
    const weights = weightsOf(rows);
    weights.stored.leaveOut(/^h\./);
    expect(weights.stored.has("h.0.c.weight")).toBe(false);
    weights.stored.finish([]);
    weights.arrays.free();
  });

  test("gives one number, whatever its axes, and refuses more", () => {
    const [a, b] = [f32([], Float32Array.of(7)), f32([1, 1], Float32Array.of(8))];
    const weights = weightsOf({ a, b, ...rows });
    expect(
      numbers(weights, (own) => concatenate([own.arrays.scalar("a"), own.arrays.scalar("b")])),
    ).toEqual([7, 8]);
    const wrong = weightsOf(rows);
    const message = "here: h.0.c.weight: expected shape (1), found (3,2)";
    expect(() => wrong.arrays.scalar("h.0.c.weight")).toThrow(new LoadError(message));
    const other = "here: h.0.c.weight: expected shape (2,3), found (3,2)";
    expect(() => wrong.stored.reshape("h.0.c.weight", [2, 3], [6])).toThrow(new LoadError(other));
    wrong.arrays.free();
  });
});

describe("Weights whose columns take inputs in another order, divided among ranks", () => {
  const how = { mode: "affine", bits: 4, groupSize: 32 } as const;
  const ordered = (order: (column: number) => number): FileTensors => {
    const data = Uint32Array.from({ length: 128 }, (_, column) => order(column));
    return { ...packed("p", [8, 128], how), "p.input_order": { dtype: "U32", shape: [128], data } };
  };
  const division = { unit: 64, inputOf: ["p"] };

  test("have the columns that take each rank's inputs", () => {
    const tensors = ordered((column) => [0, 64, 32, 96][Math.floor(column / 32)]! + (column % 32));
    const rows = randomNumbers(2 * 128, 3);
    const parts = [0, 1].map((rank) =>
      numbers(weightsOf(tensors, { group: plannedGroup(rank, 2) }), (own) => {
        const inputs = own.ranks.divide(128, division) as Slice;
        expect(inputs).toEqual({ first: 64 * rank, count: 64, of: 128 });
        const { first, count } = inputs;
        return own.linear("p", inputs, 8)(slice(array(rows, [2, 128]), 1, first, first + count));
      }),
    );
    const whole = numbers(weightsOf(tensors), (own) =>
      own.linear("p", 128, 8)(array(rows, [2, 128])),
    );
    const sums = parts[0]!.map((value, i) => value + parts[1]![i]!);
    expectClose(sums, whole, 1e-5);
  });

  test("are whole where what is quantized together takes inputs of several ranks", () => {
    const weights = weightsOf(
      ordered((column) => (column % 2) * 64 + Math.floor(column / 2)),
      { group: plannedGroup(0, 2) },
    );
    expect(weights.ranks.divide(128, division)).toBe(128);
    weights.arrays.free();
  });
});

describe("Weights.finish", () => {
  const tensors = {
    "a.weight": f32([4], x.subarray(0, 4)),
    "b.weight": f32([4], x.subarray(0, 4)),
  };

  test("refuses a tensor that nobody asked for", () => {
    const weights = weightsOf(tensors);
    weights.arrays.tensor("a.weight", [4]);
    const finish = () => weights.stored.finish([/^c/]);
    expect(finish).toThrow(LoadError);
    expect(finish).toThrow('here: the configuration has no place for tensor "b.weight"');
    weights.stored.finish([/^c/, /^b/]);
    weights.arrays.tensor("b.weight", [4]);
    weights.stored.finish([]);
    weights.arrays.free();
  });

  test("refuses a part of a packed matrix that its mode does not have", () => {
    const affine = packed("p", [64, 128], { mode: "affine" });
    const weights = weightsOf({
      ...packed("p", [64, 128], { mode: "mxfp4" }),
      "p.biases": affine["p.biases"]!,
    });
    weights.linear("p", 128, 64);
    expect(() => weights.stored.finish([])).toThrow(/no place for tensor "p.biases"$/);
    weights.arrays.free();
  });

  test("keeps a name out of the file on one line", () => {
    const weights = weightsOf({ "a\nb": f32([4], x.subarray(0, 4)) });
    expect(() => weights.stored.finish([])).toThrow('no place for tensor "a\\nb"');
  });
});

describe("Weights refuses", () => {
  const u32 = (shape: number[]) =>
    ({ dtype: "U32", shape, data: new Uint32Array(shape.reduce((a, b) => a * b)) }) as const;
  const affine: FileTensors = {
    "p.weight": u32([64, 16]),
    "p.scales": bf16([64, 2], new Float32Array(128)),
    "p.biases": bf16([64, 2], new Float32Array(128)),
  };
  const change = (name: string, shape: number[]) => ({ ...affine, [name]: u32(shape) });
  const asked = "here: p.weight: expected shape (64,128), found ";
  const cases: [string, FileTensors, string][] = [
    [
      "a matrix of another shape",
      { "p.weight": f32([128], new Float32Array(128)) },
      `${asked}(128)`,
    ],
    ["a missing matrix", {}, "here: tensor p.weight is missing"],
    [
      "bits that do not exist",
      change("p.weight", [64, 28]),
      `${asked}(64,28) of U32 with scales (64,2) of BF16`,
    ],
    [
      "a group size that does not exist",
      { ...affine, "p.scales": bf16([64, 8], new Float32Array(512)) },
      "here: p.weight",
    ],
    ["packed rows that are too few", change("p.weight", [32, 16]), `${asked}(32,16) of U32 with`],
    [
      "scales of other rows",
      { ...affine, "p.scales": bf16([32, 2], new Float32Array(64)) },
      "here: p",
    ],
    [
      "a packed matrix of floats",
      { ...affine, "p.weight": f32([64, 16], new Float32Array(1024)) },
      `${asked}(64,16) of F32 with scales (64,2) of BF16`,
    ],
    [
      "scales of integers",
      change("p.scales", [64, 2]),
      `${asked}(64,16) of U32 with scales (64,2)`,
    ],
    [
      "biases of another type",
      { ...affine, "p.biases": f16([64, 2], new Float32Array(128)) },
      `${asked}(64,16) of U32`,
    ],
    [
      "biases of another shape",
      { ...affine, "p.biases": bf16([64, 4], new Float32Array(256)) },
      "here: p.biases: expected shape (64,2), found (64,4)",
    ],
    [
      "affine scales without biases",
      { "p.weight": affine["p.weight"]!, "p.scales": affine["p.scales"]! },
      "here: tensor p.biases is missing",
    ],
    ["plain integers", { "p.weight": u32([64, 128]) }, "p.weight: weights of type U32 are not"],
  ];

  test.each(cases)("%s", (_, tensors, message) => {
    const before = liveArrays();
    for (const backend of ["cpu", "metal", "cuda"] as const) {
      const weights = weightsOf(tensors, { device: deviceOf(backend) });
      const load = () => weights.linear("p", 128, 64);
      expect(load).toThrow(LoadError);
      expect(load).toThrow(message);
      weights.arrays.free();
    }
    expect(liveArrays()).toBe(before);
  });
});
