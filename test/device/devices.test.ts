// Whatever a device computes by its own means comes to what MLX's operations give, which every device has.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import type { Gating } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/open.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import {
  add,
  astype,
  concatenate,
  dequantize,
  matmul,
  multiply,
  quantize,
  reshape,
  slice,
  split,
  swapAxes,
  take,
  zeros,
} from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { keeper } from "../../src/self-test/check.ts";
import { deviceOf } from "../support/devices.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";
import { recordingKernel } from "../support/recording-kernel.ts";
import { randomNumbers } from "../support/safetensors-file.ts";

useMlx();

const [ROWS, COLUMNS] = [3, 70];
const matrix = (seed: number) => array(randomNumbers(ROWS * COLUMNS, seed), [ROWS, COLUMNS]);

const operations: Record<string, (device: ReturnType<typeof deviceOf>) => MlxArray[]> = {
  rmsNorm: (device) => [
    device.rmsNorm(matrix(1), array(randomNumbers(COLUMNS, 2)), 1e-5),
    device.rmsNorm(matrix(1), undefined, 1e-5),
  ],
  "gate, swiglu": (device) => [device.gate("swiglu", matrix(1), matrix(2))],
  "gate, geglu": (device) => [device.gate("geglu", matrix(1), matrix(2))],
  "gate, a function": (device) => [device.gate((gate) => gate, matrix(1), matrix(2))],
  softmax: (device) => [device.softmax(matrix(1))],
  logSumExp: (device) => [device.logSumExp(matrix(1))],
  best: (device) => {
    const { indices, highest } = device.best(matrix(1));
    return [indices, highest];
  },
  mask: (device) => {
    // The last word has bits that mean nothing.
    const words = Math.ceil(COLUMNS / 32);
    const bits = Uint32Array.from({ length: ROWS * words }, (_, i) => 0x9e37_79b1 * (i + 1));
    return [device.mask(matrix(1), bits)];
  },
  after: (device) => [device.after(array(Int32Array.of(3, -4, 5)), array([Number.NaN, 1]))],
};

describe.each(Object.entries(operations))("%s", (_name, compute) => {
  test("is the same on the device at hand and by MLX's operations alone", () => {
    using _ = new Scope();
    const [own, plain] = [deviceOf(backend()), deviceOf("metal")].map((device) =>
      compute(device).map((each) => ({ shape: each.shape, numbers: each.numbers() })),
    );
    expect(own!.map(({ shape }) => shape)).toEqual(plain!.map(({ shape }) => shape));
    for (const [i, { numbers }] of own!.entries()) {
      for (const [j, value] of numbers.entries()) {
        const expected = plain![i]!.numbers[j]!;
        if (Number.isFinite(expected)) expect(value).toBeCloseTo(expected, 4);
        else expect(value).toBe(expected);
      }
    }
  });
});

test("integers that are ordered after something are what they were", () => {
  using _ = new Scope();
  for (const before of [[-Infinity], [Number.NaN], [0, 1], [Infinity]]) {
    const ordered = deviceOf(backend()).after(array(Int32Array.of(3, -4)), array(before));
    expect([ordered.dtype, ordered.numbers()]).toEqual(["int32", [3, -4]]);
  }
});

// On CUDA MLX's own product of several float32 rows with 8 bits in groups of 64 is garbage (docs/log.md). On a CPU
// MLX computes what the other devices ask it to.
const kinds = backend() === "cpu" ? (["cpu", "cuda", "metal"] as const) : [backend()];

const gatings: (Gating | undefined)[] = [undefined, "swiglu", "geglu", (gate, up) => add(gate, up)];
const experts = kinds.flatMap((kind) =>
  (["dense", "packed"] as const).flatMap((format) =>
    gatings.map((gating) => [kind, format, gating] as const),
  ),
);
test.each(experts)("%s multiplies rows by their %s experts, gating %p", (kind, format, gating) => {
  using _ = new Scope();
  const device = deviceOf(kind);
  const [EXPERTS, OUT, IN] = [4, 64, 128];
  const quantization = { bits: 4, groupSize: 32, mode: "affine" } as const;
  const stack = array(randomNumbers(EXPERTS * OUT * IN, 1), [EXPERTS, OUT, IN]);
  const packed = quantize(stack, quantization);
  const weight = format === "dense" ? stack : dequantize(packed, quantization, "float32");
  const bias = array(randomNumbers(EXPERTS * OUT, 2), [EXPERTS, OUT]);
  using keep = keeper();
  for (const added of [undefined, bias]) {
    const linear = device.experts(
      format === "dense"
        ? { kind: "dense", weight }
        : { kind: "packed", matrix: packed, quantization },
      added,
      keep.keepView,
    );
    for (const [rows, each, sorted] of [
      [1, 2, false],
      [5, 3, false],
      [90, 1, true],
    ] as const) {
      const x = array(randomNumbers(rows * IN, rows), [rows, IN]);
      const chosen = Array.from({ length: rows * each }, (_, i) =>
        sorted ? Math.floor(i / 40) : (i * 3) % EXPERTS,
      );
      const found = linear(x, array(Int32Array.from(chosen)), { gating, sorted });
      const products = chosen.map((expert, i) => {
        const product = matmul(
          slice(x, 0, Math.floor(i / each), Math.floor(i / each) + 1),
          swapAxes(slice(weight, 0, expert, expert + 1), 1, 2),
        );
        const own = added && slice(added, 0, expert, expert + 1);
        return reshape(own ? add(product, own) : product, [1, OUT]);
      });
      const whole = concatenate(products, 0);
      const halves = split(whole, 2) as [MlxArray, MlxArray];
      const expected = gating ? device.gate(gating, ...halves) : whole;
      expect(found.shape).toEqual(expected.shape);
      const numbers = expected.numbers();
      const worst = Math.max(...found.numbers().map((value, i) => Math.abs(value - numbers[i]!)));
      expect(worst).toBeLessThan(1e-3);
    }
  }
});

const layouts = kinds.flatMap((kind) =>
  // A CPU has products of its own for 4 and 8 bits, and keeps no other integers quantized.
  (kind === "cpu" ? [4, 8] : [2, 3, 4, 5, 6, 8]).flatMap((bits) =>
    [32, 64, 128].map((groupSize) => [kind, bits, groupSize] as const),
  ),
);
test.each(layouts)(
  "%s multiplies any number of rows by %i bits in groups of %i",
  (kind, bits, groupSize) => {
    using _ = new Scope();
    const device = deviceOf(kind);
    const quantization = { bits, groupSize, mode: "affine" } as const;
    expect(device.keepsQuantized("float32", quantization)).toBe(true);
    const packed = quantize(array(randomNumbers(64 * 128, 1), [64, 128]), quantization);
    using keep = keeper();
    const linear = device.linear(
      { kind: "packed", matrix: packed, quantization },
      {
        dtype: "float32",
        bias: undefined,
        keepDequantized: false,
        ...keep,
      },
    );
    const whole = swapAxes(dequantize(packed, quantization, "float32"), -1, -2);
    for (const rows of [1, 2, 3, 4, 16, 33]) {
      const x = array(randomNumbers(rows * 128, rows), [rows, 128]);
      const [found, expected] = [linear(x).numbers(), matmul(x, whole).numbers()];
      const worst = Math.max(...found.map((value, i) => Math.abs(value - expected[i]!)));
      expect(worst).toBeLessThan(1e-3);
    }
  },
  120_000,
);

test("on CUDA prompts are recorded where the GPU takes no longer than the host", () => {
  const { besideTokens, paddedTokens, tokenBudget } = deviceOf("cuda");
  const padded = paddedTokens!;
  expect(padded(8000, 1.2e9)).toBe(8192);
  expect(padded(1000, 6.4e9)).toBe(1024);
  expect(padded(8000, 6.4e9)).toBeUndefined();
  // Nothing is added to a step that has all it may beside streams.
  expect(padded(besideTokens!, 1.2e9)).toBe(besideTokens!);
  // Nor to one that has all it may.
  for (const tokens of [8193, tokenBudget]) expect(padded(tokens, 1.2e9)).toBe(tokenBudget);
  expect(padded(tokenBudget + 1, 1.2e9)).toBe(9216);
});

test.skipIf(backend() !== "cpu")("on Hopper a consumer computes a pending sum or product", () => {
  using _ = new Scope();
  const launches: string[] = [];
  const make = recordingKernel(({ name }) => launches.push(name.replace("mlx_serve_", "")));
  const launched = <T>(build: () => T) => {
    launches.length = 0;
    const built = build();
    return { built, names: [...launches] };
  };
  const device = openDevice("cuda", { architecture: "sm_90" }, make);
  using keep = keeper();
  const linear = device.linear(
    { kind: "dense", weight: zeros([2048, 512], "bfloat16") },
    {
      dtype: "bfloat16",
      bias: undefined,
      keepDequantized: false,
      ...keep,
    },
  );
  const rowsOf = (rows: number) => zeros([rows, 512], "bfloat16");
  const weight = zeros([2048], "bfloat16");
  const normed = (x: MlxArray) => launched(() => device.rmsNorm(x, weight, 1e-5)).names;
  const residual = add(zeros([1024, 2048], "bfloat16"), 1);
  const { built: sum, names } = launched(() => linear(rowsOf(1024), { residual }));
  expect([names, normed(sum), normed(sum)]).toEqual([[], ["sum_norm"], ["norm"]]);
  // The kernels here make zeros: these are not the add's ones.
  expect([...new Set(sum.numbers())]).toEqual([0]);
  expect(normed(add(linear(rowsOf(1024)), residual))).toEqual(["norm"]);
  const [tokens, experts] = [zeros([3, 2048], "bfloat16"), zeros([3, 7, 2048], "bfloat16")];
  expect(normed(device.combine(experts, zeros([3, 7]), tokens))).toEqual(["sum_norm"]);
  expect(normed(device.combine(experts, zeros([3, 7])))).toEqual(["norm"]);

  const attention = device.attention({ heads: 8, kvHeads: 4, headDim: 128 }, "bfloat16");
  const pool = zeros([4, 4, 32, 128], "bfloat16");
  const places = array(new Int32Array(3 * 8448));
  const prepared = (qkv: MlxArray) => {
    const pools = { keys: pool, values: pool };
    return launched(() => attention.prepare(qkv, pools, places, { scale: 1 })).names;
  };
  const { built: qkv, names: products } = launched(() => linear(rowsOf(8448)));
  expect([products, prepared(qkv)]).toEqual([[], ["prompt_heads"]]);
  expect(prepared(add(qkv, 0))).toEqual(["prepare"]);
  for (const each of [attention, device]) each.free();
});

test.skipIf(backend() !== "cpu")("attention is launched for as many SMs as the GPU has", () => {
  using _ = new Scope();
  for (const multiprocessors of [132, 114]) {
    const groups: unknown[] = [];
    const make = recordingKernel((_, { template }) => groups.push(template?.GROUPS));
    const device = openDevice("cuda", { architecture: "sm_90", multiprocessors }, make);
    const attention = device.attention({ heads: 4, kvHeads: 2, headDim: 128 }, "bfloat16");
    const pool = zeros([4, 2, 32, 128], "bfloat16");
    const integers = array(new Int32Array(64));
    const pools = { keys: pool, values: pool };
    const queries = zeros([64, 512], "bfloat16");
    attention.chunks!.attend(queries, pools, integers, integers, integers, { scale: 1 });
    expect(groups).toEqual([multiprocessors]);
    expect(attention.clustered?.groups).toBe(multiprocessors);
    for (const each of [attention, device]) each.free();
  }
});

describe.skipIf(backend() !== "cpu")("on Hopper a kept copy of quantized weights", () => {
  /** A matrix, and what is multiplied by it; `kept` is what is kept for a copy. */
  function opened(bits: number, kept = (copy: MlxArray) => copy) {
    const quantization = { bits, groupSize: 64, mode: "affine" } as const;
    const launched: string[] = [];
    const make: MakeKernel = (language, source) => {
      const kernel = emulatedKernel(language, source);
      return {
        ...kernel,
        configure: (launch) => {
          const configured = kernel.configure(launch);
          const call = (...given: MlxArray[]) => {
            launched.push(source.name.replace(/^mlx_serve_|_\d+$/g, ""));
            return configured.call(...given);
          };
          return { ...configured, call };
        },
      };
    };
    const device = openDevice("cuda", { architecture: "sm_90" }, make);
    const keep = keeper();
    const numbers = astype(array(randomNumbers(64 * 512, 1), [64, 512]), "bfloat16");
    const matrix = quantize(numbers, quantization);
    const form = { kind: "packed", matrix, quantization } as const;
    const linear = device.linear(form, {
      dtype: "bfloat16",
      bias: undefined,
      keepDequantized: true,
      keepView: keep.keepView,
      keepWeight: (made) => keep.keepView(kept(made())),
    });
    const free = () => {
      keep[Symbol.dispose]();
      device.free();
    };
    return { device, form, linear, launched, free };
  }

  // There are no kernels for 6 bits.
  test.each([
    [4, ["streamed_vector", "product", "dense_product", "dense_product"]],
    [6, ["product", "dense_product", "dense_product"]],
  ])(
    "is multiplied with more than a few rows, and not with one of %i bits",
    (bits, expectedLaunches) => {
      using _ = new Scope();
      const { form, linear, launched, free } = opened(bits);
      const whole = swapAxes(dequantize(form.matrix, form.quantization, "float32"), -1, -2);
      for (const rows of [1, 16, 17, 128, 129]) {
        const x = astype(array(randomNumbers(rows * 512, rows), [rows, 512]), "bfloat16");
        const expected = matmul(astype(x, "float32"), whole).numbers();
        const before = launched.length;
        const found = astype(linear(x), "float32").numbers();
        // MLX rounds its own sums.
        if (launched.length === before) continue;
        const worst = Math.max(...found.map((value, i) => Math.abs(value - expected[i]!)));
        expect(worst).toBeLessThan(0.02 * Math.max(...expected.map(Math.abs)));
      }
      expect(launched).toEqual(expectedLaunches);
      free();
    },
    60_000,
  );

  test("has the rows that are looked up", () => {
    using _ = new Scope();
    const { device, form, launched, free } = opened(4, (copy) => multiply(copy, 2));
    const tokens = array(Uint32Array.of(3, 60));
    const found = astype(device.lookup(form, tokens, "bfloat16"), "float32").numbers();
    const rows = dequantize(form.matrix, form.quantization, "bfloat16");
    expect(found).toEqual(astype(multiply(take(rows, tokens), 2), "float32").numbers());
    expect(launched).toEqual(["lookup"]);
    free();
  });
});
