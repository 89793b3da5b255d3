// Benchmarks products of many rows with quantized matrices on an NVIDIA GPU with wgmma, interleaved: the bfloat16
// matrix with MLX (cuBLAS), the kernel for all GPUs (src/kernels/product/product-many.c), and the Hopper kernel
// (src/kernels/product/warpgroup-product.c): `MLX_SERVE_BACKEND=cuda bun scripts/bench/products.ts`. The default
// matrices are those of Llama-3.2-3B in 4 bits; others: `--matrices qkv:5120x3072,gate-up:16384x3072:gated --bits 8
// --group-size 32 --rows 64,128 --rounds 5`. Each line has the microseconds of each kernel, and the Hopper kernel's
// configuration as tiles x shares x step x stages x rows. `--variants 2x2x128x4,1x1x64x6,_x4,...` adds a line with
// other configurations, fastest first; `_` and omitted trailing numbers mean the automatic choice
// (src/kernels/product/warpgroup-product.ts). `--bits 16` measures dense matrices: MLX against the kernel for few
// rows (src/kernels/product/dense-product.c), or with `--rows 8192 --matrices gate-up:16384x3072:gated` the one for
// prompts (src/kernels/product/prompt-product.c) against MLX with a separate gate. Fails if results differ.
import { findLibrary } from "../../ffi/native.ts";
import { gpuFacts } from "../../src/kernels/host/gpu.ts";
import type { Matrix } from "../../src/kernels/product/matrix.ts";
import { Products } from "../../src/kernels/product/product.ts";
import { fitsPrompt } from "../../src/kernels/product/prompt-product.ts";
import {
  type AskedShape,
  type GroupShape,
  groupShape,
} from "../../src/kernels/product/warpgroup-product.ts";
import { Gates } from "../../src/kernels/token/gate.ts";
import { evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { makeKernel } from "../../src/mlx/kernel.ts";
import {
  astype,
  dequantize,
  flatten,
  matmul,
  max,
  maximum,
  multiply,
  negative,
  quantize,
  sigmoid,
  split,
  subtract,
  sum,
  swapAxes,
} from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { Recorded } from "../../src/mlx/recording.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { readFlags } from "../flags.ts";

const values = readFlags({
  matrices: "qkv:5120x3072,o:3072x3072,gate-up:16384x3072:gated,down:3072x8192,head:128256x3072",
  bits: 4,
  groupSize: 64,
  rows: "32,64,128,256",
  rounds: 5,
  variants: "",
});
const dtype = "bfloat16";
const isDense = values.bits === 16;
const quantization = {
  mode: "affine",
  bits: isDense ? 8 : values.bits,
  groupSize: values.groupSize,
} as const;
/** Consecutive launches in a CUDA graph, like a model's step, to exclude the host's overhead. */
const CHAIN = 40;
/** Weights used in rotation, so that none is in the L2 cache, as in a model. */
const CACHE_BYTES = 2 ** 27;
/** Inputs used in rotation: MLX would compute equal products once. */
const BATCHES = 8;

const { device } = openMlx(findLibrary(), { device: "gpu" });
const gpu = gpuFacts(device);
if (!gpu.hasWgmma) throw new Error("this GPU has no wgmma");

const variants = values.variants.split(",").filter(Boolean).map(parseVariant);
const many = new Products({ ...gpu, hasWgmma: false });
const gateKernels = new Gates(makeKernel);
/** Also with few rows, where models use another kernel. */
const leastRows = 17;
const warpgroups = [{}, ...variants].map((groups) => ({
  groups,
  products: new Products(gpu, makeKernel, undefined, { ...groups, leastRows }),
}));

type Way = { name: string; by(x: MlxArray, matrix: number, isGated: boolean): MlxArray };

let isGood = true;
for (const described of values.matrices.split(",")) {
  const [name, sizes, gated] = described.split(":") as [string, string, string?];
  const [outputs, inputs] = sizes.split("x").map(Number) as [number, number];
  const isGated = gated !== undefined;
  using _ = new Scope();
  const bytes = (outputs * inputs * values.bits) / 8;
  const copies = Math.min(CHAIN, Math.max(CHAIN / BATCHES, Math.ceil(CACHE_BYTES / bytes)));
  const matrices = Array.from({ length: copies }, (_, i): Matrix => {
    const weight = astype(normal(key(i), [outputs, inputs]), dtype);
    return isDense
      ? { kind: "dense", weight }
      : { kind: "packed", matrix: quantize(weight, quantization), quantization };
  });
  const weights = matrices.map((each) =>
    each.kind === "dense" ? each.weight : dequantize(each.matrix, quantization, dtype),
  );
  for (const each of matrices)
    if (each.kind === "packed")
      evaluate(each.matrix.weight, each.matrix.scales, each.matrix.biases!);
  evaluate(...weights);
  const dense = weights.map((each) => swapAxes(each, 0, 1));
  for (const rows of values.rows.split(",").map(Number)) {
    using _ = new Scope();
    const all = astype(normal(key(100), [BATCHES * rows, inputs]), dtype);
    evaluate(all);
    const byProducts =
      (products: Products): Way["by"] =>
      (x, i, isGated) =>
        products.product(x, matrices[i]!, { isGated });
    const { bits, groupSize: span } = quantization;
    const sizes = { rows, columns: outputs, inputs, bits, span };
    const isPrompt = isDense && isGated && fitsPrompt(gpu, rows, outputs, inputs);
    // Gates are not products, so bfloat16 is measured without one and compared with ungated results. The prompt
    // kernel always gates, and so does bfloat16 next to it.
    const possible: Way[] = [
      {
        name: isPrompt ? "bfloat16 and a gate" : "bfloat16",
        by: (x, i) => {
          const made = matmul(x, dense[i]!);
          return isPrompt ? gateKernels.swiglu(made)! : made;
        },
      },
      ...(isDense ? [] : [{ name: "product-many", by: byProducts(many) }]),
      ...warpgroups.map(({ groups, products }) => ({
        name: isDense ? "our kernel" : nameOf(groupShape(gpu, sizes, groups)),
        by: byProducts(products),
      })),
    ];
    const ways = [...new Map(possible.map((way) => [way.name, way])).values()];
    const timed = ways.map(({ name, by }) => {
      const chain = ([all]: MlxArray[]) => {
        const batches = split(all!, BATCHES, 0);
        return Array.from({ length: CHAIN }, (_, i) =>
          by(batches[Math.floor(i / copies)]!, i % copies, isGated),
        );
      };
      const recorded = new Recorded(chain, () => [all]);
      return { name, recorded, seconds: Number.POSITIVE_INFINITY };
    });
    const first = split(all, BATCHES, 0)[0]!;
    const plain = matmul(first, dense[0]!);
    const [gate, up] = split(plain, 2) as [MlxArray, MlxArray];
    const gates = multiply(multiply(gate, sigmoid(gate)), up);
    const differences = ways.map(({ by }, i) => {
      using _ = new Scope();
      if (isPrompt) return furthest(gates, by(first, 0, true));
      const own = furthest(plain, by(first, 0, false));
      return i > 0 && isGated ? Math.max(own, furthest(gates, by(first, 0, true))) : own;
    });
    for (let round = 0; round < values.rounds; round++)
      for (const way of timed) way.seconds = Math.min(way.seconds, secondsOf(way.recorded, all));
    for (const { recorded } of timed) recorded.free();
    const told = timed.map(({ name, seconds }, i) => {
      const isRight = differences[i]! < 2e-2;
      if (!isRight) isGood = false;
      return `${name} ${(seconds * 1e6).toFixed(1)}${isRight ? "" : ` differs by ${differences[i]}`}`;
    });
    const chosen = isDense ? 1 : 2;
    const faster = (timed[0]!.seconds / timed[chosen]!.seconds).toFixed(2);
    console.log(
      `${name} ${rows} rows: ${told.slice(0, chosen + 1).join(", ")} us, ${faster} x bfloat16`,
    );
    const others = timed.map(({ seconds }, i) => ({ seconds, told: told[i]! })).slice(chosen + 1);
    if (others.length > 0) {
      const sorted = others.sort((a, b) => a.seconds - b.seconds);
      console.log(`  ${sorted.map(({ told }) => told).join(", ")}`);
    }
  }
}
many.free();
gateKernels.free();
for (const { products } of warpgroups) products.free();
if (!isGood) {
  console.error("the results differ");
  process.exitCode = 1;
}

function parseVariant(text: string): AskedShape {
  const [tiles, shares, step, stages, rows] = text
    .split("x")
    .map((each) => (each === "_" ? undefined : Number(each)));
  const asked = { tiles, shares, step, stages, rows };
  return Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== undefined));
}

function nameOf({ rows, tiles, shares, step, stages }: GroupShape): string {
  return `${tiles}x${shares}x${step}x${stages}x${rows}`;
}

function secondsOf(recorded: Recorded, all: MlxArray): number {
  using _ = new Scope();
  // The second call captures the graph.
  while (!recorded.isRecorded) {
    evaluate(...recorded.call(all));
    if (recorded.failure) throw recorded.failure;
  }
  const made = recorded.call(all);
  const start = Bun.nanoseconds();
  evaluate(...made);
  return (Bun.nanoseconds() - start) / 1e9 / CHAIN;
}

/** Relative to the largest number; NaN if either is. */
function furthest(a: MlxArray, b: MlxArray): number {
  const most = (x: MlxArray) => {
    const sizes = flatten(maximum(x, negative(x)));
    // `max` may skip NaN, the sum does not.
    return max(sizes, 0).numbers()[0]! + 0 * sum(sizes, 0).numbers()[0]!;
  };
  const exact = astype(a, "float32");
  return most(subtract(exact, astype(b, "float32"))) / most(exact);
}
