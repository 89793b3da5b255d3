// What kernels keep of launches whose sizes never come again.
import { expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { HeadProducts } from "../../../src/kernels/attention/head-product.ts";
import { KernelCache, MOST_CONFIGURED } from "../../../src/kernels/host/kernel-cache.ts";
import { Recent } from "../../../src/kernels/host/recent.ts";
import type { Matrix } from "../../../src/kernels/product/matrix.ts";
import { Products } from "../../../src/kernels/product/product.ts";
import { liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import type { MakeKernel } from "../../../src/mlx/kernel.ts";
import { zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { ampere, hopper } from "../../support/gpus.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

/** Computes nothing, and counts the configurations that were made and those that are not freed. */
function counted(): { make: MakeKernel; made: number; alive: number; most: number } {
  const counts = { made: 0, alive: 0, most: 0 };
  const make: MakeKernel = () => ({
    configure: ({ outputs }) => {
      counts.made += 1;
      counts.alive += 1;
      counts.most = Math.max(counts.most, counts.alive);
      let isFreed = false;
      return {
        call: () => {
          expect(isFreed).toBe(false);
          return outputs.map(({ shape, dtype }) => zeros(shape, dtype));
        },
        free: () => {
          isFreed = true;
          counts.alive -= 1;
        },
      };
    },
    free() {},
  });
  return Object.assign(counts, { make });
}

test("the most recently used are kept, and all others freed", () => {
  const freed: number[] = [];
  const recent = new Recent<number, { free(): void }>(8);
  const use = (key: number) => recent.get(key, () => ({ free: () => freed.push(key) }));
  const first = use(0);
  for (let key = 1; key < 100; key++) {
    use(key);
    expect(use(0)).toBe(first);
    expect(key + 1 - freed.length).toBeLessThanOrEqual(8);
  }
  expect(freed).not.toContain(0);
  recent.free();
  expect(freed.toSorted((a, b) => a - b)).toEqual([...Array(100).keys()]);
});

test("a step's own launches stay configured beside those of other lengths", () => {
  using _ = new Scope();
  const counts = counted();
  const kernels = new KernelCache("cuda", counts.make);
  const launch = (rows: number) =>
    kernels.run("kernel", "", {}, "made", {
      outputs: [{ shape: [rows], dtype: "float32" }],
      grid: [rows, 1, 1],
      threadGroup: [1, 1, 1],
    });
  const own = Array.from({ length: 100 }, (_, i) => i + 1);
  for (let rows = 1000; rows < 3000; rows++) {
    if (rows % 10 === 0) own.forEach(launch);
    launch(rows);
  }
  expect(counts.made).toBe(2000 + own.length);
  expect(counts.most).toBeLessThanOrEqual(MOST_CONFIGURED);
  kernels.free();
  expect(counts.alive).toBe(0);
});

test.skipIf(backend() !== "cpu")("lengths of prompts leave no arrays, and few launches", () => {
  using _ = new Scope();
  const counts = counted();
  const products = new Products(hopper, counts.make);
  const fewer = new Products(ampere, counts.make);
  const heads = new HeadProducts(counts.make);
  const dense: Matrix = { kind: "dense", weight: zeros([512, 256], "bfloat16") };
  const experts: Matrix = { kind: "dense", weight: zeros([4, 512, 256], "bfloat16") };
  const factors = () => zeros([512, 4], "bfloat16");
  const matrix = { weight: zeros([512, 32], "uint32"), scales: factors(), biases: factors() };
  const packed: Matrix = { kind: "packed", matrix, quantization: { mode: "affine", bits: 4 } };
  const ownHeads = { weight: zeros([4, 64, 64], "bfloat16"), isTransposed: false };
  const ways: Record<string, (x: MlxArray) => unknown> = {
    packed: (x) => products.product(x, packed, { residual: zeros([x.shape[0]!, 512], x.dtype) }),
    "packed, of other GPUs": (x) => fewer.product(x, packed, {}),
    dense: (x) => products.product(x, dense, {}),
    "a few rows": (x) => fewer.product(x, dense, {}),
    experts: (x) => {
      const [rows] = x.shape as [number];
      const plan = products.plan(zeros([rows], "uint32"), rows, experts)!;
      return products.experts(x, experts, plan, true);
    },
    heads: (x) => heads.product({ rows: x, first: 0, stride: 64 }, ownHeads),
  };
  for (const [name, compute] of Object.entries(ways)) {
    const [arrays, configured] = [liveArrays(), counts.alive];
    counts.most = counts.alive;
    for (let rows = 17; rows < 17 + 3 * MOST_CONFIGURED; rows++) {
      using _ = new Scope();
      compute(zeros([rows, 256], "bfloat16"));
    }
    expect([name, liveArrays()]).toEqual([name, arrays]);
    // Experts have two caches.
    expect([name, counts.most <= configured + 2 * MOST_CONFIGURED]).toEqual([name, true]);
  }
  for (const each of [products, fewer, heads]) each.free();
  expect(counts.alive).toBe(0);
});
