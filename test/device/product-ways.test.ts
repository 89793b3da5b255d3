// The kernels, or MLX's operations, by which NVIDIA GPUs multiply by matrices of real models: a change
// of a cost or of a kernel's limits shows here.
import { expect, spyOn, test } from "bun:test";
import { mlxc } from "../../ffi/lib.ts";
import { backend } from "../../ffi/native.ts";
import type { Fused } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/open.ts";
import type { Matrix } from "../../src/kernels/product/matrix.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import { type Quantization, quantize, zeros } from "../../src/mlx/ops.ts";
import { hold, Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";
import { recordingKernel } from "../support/recording-kernel.ts";

useMlx();

/** `isCopied`: a dequantized copy is kept. `each`: experts per token. `stored`: type of weights. */
type Product = {
  shape: readonly number[];
  quantization?: Quantization;
  isCopied?: boolean;
  isBiased?: boolean;
  gating?: Fused["gating"];
  isAdded?: boolean;
  each?: number;
  stored?: "float16";
};

const q4 = { mode: "affine", bits: 4, groupSize: 64 } as const;
const qkv: Product = { shape: [5120, 3072] };
const gateUp: Product = { shape: [16_384, 3072], gating: "swiglu" };
const down: Product = { shape: [3072, 8192], isAdded: true };
const small: Product = { shape: [1024, 2048] };
const experts: Product = { shape: [128, 1536, 2048], each: 8, gating: "swiglu" };

const products: Record<string, Product> = {
  ...{ qkv, "gate-up": gateUp, down, small, experts },
  biased: { ...small, isBiased: true },
  "q4-qkv": { ...qkv, quantization: q4 },
  "q4-gate-up": { ...gateUp, quantization: q4 },
  "q8-down": { ...down, quantization: { ...q4, bits: 8 } },
  copied: { ...qkv, quantization: q4, isCopied: true },
  "copied-head": { shape: [128_256, 3072], quantization: q4, isCopied: true },
  "copied-q6": { ...small, quantization: { ...q4, bits: 6 }, isCopied: true },
  "biased-q4": { ...qkv, quantization: q4, isBiased: true },
  "q4-float16": { ...qkv, quantization: q4, stored: "float16" },
  mxfp4: { ...qkv, quantization: { mode: "mxfp4", bits: 4, groupSize: 32 } },
  "q4-experts": { ...experts, quantization: q4 },
  geglu: { ...gateUp, gating: "geglu" },
  uneven: { shape: [72, 256], quantization: q4 },
  narrow: { shape: [80, 256], quantization: q4 },
  "biased-experts": { ...experts, isBiased: true },
};

/** By product and rows: launches with their CTAs on an A100, and on an H100 PCIe if they differ. */
const chosen = `
qkv 1: vector 1280x1x1
qkv 16: matmul
qkv 17: matmul | dense_product_148488 1x1x80
qkv 129: matmul
gate-up 1: vector 4096x1x1
gate-up 8192: matmul | prompt_product 114x1x1
down 64: matmul | dense_product_198664 2x1x48
small 1: vector 128x1x1
small 2: product 1x64x1
small 17: matmul | dense_product_108040 4x1x16
biased 2: addmm
q4-qkv 1: packed_vector_3 320x1x1 | streamed_vector_139264 107x1x1
q4-qkv 16: product 1x160x1
q4-qkv 17: product_many_65536 1x320x1
q4-qkv 65: product_many_32768 3x80x1 | warpgroup_product_216064 4x1x20
q4-qkv 256: product_many_65536 4x80x1 | warpgroup_product_205824 2x2x20
q4-qkv 257: dequantize, matmul
q4-gate-up 1: packed_vector_2 171x1x1 | streamed_vector_139264 114x1x1
q4-gate-up 100: product_many_65536 2x256x1 | warpgroup_product_205824 1x1x64
q8-down 1: packed_vector_3 256x1x1 | streamed_vector_174120 96x1x1
q8-down 5: product 1x192x1
copied 1: packed_vector_3 320x1x1 | streamed_vector_139264 107x1x1
copied 17: matmul | dense_product_148488 1x1x80
copied 129: matmul
copied-head 64: product_many_65536 1x2004x1
copied-head 65: matmul
copied-q6 1: quantized_matmul
copied-q6 2: product 1x64x1
mxfp4 1: quantized_matmul
mxfp4 2: dequantize, matmul
experts 1: vector 192x8x1
experts 16: product_many_8192 128x48x1
experts 64: product_many_8192 160x48x1
experts 2048: product_many_8192 384x12x1 | expert_product 8x6x32
q4-experts 1: packed_vector_3 96x8x1
biased-experts 2: gather_mm
geglu 8192: matmul
biased-q4 16: product 1x160x1
q4-float16 1: quantized_matmul
uneven 2: dequantize, matmul
narrow 2: product 1x5x1
`;

const operations = ["matmul", "addmm", "quantized_matmul", "dequantize", "gather_mm"] as const;

function launchesOf(sms: number, product: Product, rows: number): string {
  using _ = new Scope();
  const launched: string[] = [];
  const make = recordingKernel(({ name }, { grid, threadGroup }) => {
    const ctas = grid.map((threads, i) => threads / threadGroup[i]!);
    if (/product|vector/.test(name)) launched.push(`${name.slice(10)} ${ctas.join("x")}`);
  });
  const architecture = sms === 114 ? "sm_90" : "sm_80";
  const device = openDevice("cuda", { architecture, multiprocessors: sms }, make);
  const { shape, quantization, isCopied = false, isBiased, gating, isAdded, each } = product;
  const bf16 = (...shape: number[]) => zeros(shape, "bfloat16");
  const weight = zeros(shape, product.stored ?? "bfloat16");
  const matrix: Matrix = quantization
    ? { kind: "packed", matrix: quantize(weight, quantization), quantization }
    : { kind: "dense", weight };
  const [outputs, inputs] = shape.slice(-2) as [number, number];
  const bias = isBiased ? bf16(...shape.slice(0, -1)) : undefined;
  const held: MlxArray[] = [];
  const keepView = (view: MlxArray) => held[held.push(hold(view)) - 1]!;
  const keep = { keepView, keepWeight: (make: () => MlxArray) => keepView(make()) };
  const options = { dtype: "bfloat16", keepDequantized: isCopied, bias, ...keep } as const;
  const linear = each ? undefined : device.linear(matrix, options);
  const calls = mlxc as unknown as Record<string, (...given: unknown[]) => unknown>;
  const spies = operations.map((name) => {
    const call = calls[`mlx_${name}`]!;
    return spyOn(calls, `mlx_${name}`).mockImplementation((...given) => {
      launched.push(name);
      return call(...given);
    });
  });
  const x = bf16(rows, inputs);
  linear?.(x, { gating, residual: isAdded ? bf16(rows, outputs) : undefined });
  if (each) {
    device.experts(matrix, bias, keepView)(x, array(new Uint32Array(rows * each)), { gating });
  }
  for (const spy of spies) spy.mockRestore();
  for (const each of held) each.free();
  device.free();
  return launched.join(", ");
}

test.skipIf(backend() !== "cpu")("products of real models are computed by the fastest way", () => {
  const found = chosen
    .trim()
    .split("\n")
    .map((line) => {
      const [key, name, rows] = /^(\S+) (\d+)/.exec(line)!;
      const ways = [108, 114].map((sms) => launchesOf(sms, products[name!]!, Number(rows)));
      return `${key}: ${[...new Set(ways)].join(" | ")}`;
    });
  expect(found).toEqual(chosen.trim().split("\n"));
});
