// What the program asks of MLX on Metal, for every shape that matters: there is no Metal here, so kernels are
// recorded instead of run.
import { findLibrary } from "../../ffi/native.ts";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
} from "../../src/kernels/paged-attention.ts";
import { array } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { KernelLaunch, KernelSource, MakeKernel } from "../../src/mlx/kernel.ts";
import { zeros } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

export type Launch = {
  kernel: KernelSource;
  launch: KernelLaunch;
  /** In the order of the kernel's names. */
  inputs: readonly { dtype: Dtype; shape: readonly number[] }[];
};

const launches: Launch[] = [];

const recordedKernel: MakeKernel = (_, kernel) => ({
  configure: (launch) => ({
    call: (...inputs) => {
      launches.push({
        kernel,
        launch,
        inputs: inputs.map(({ dtype, shape }) => ({ dtype, shape })),
      });
      return launch.outputs.map(({ shape, dtype }) => zeros(shape, dtype));
    },
    free() {},
  }),
  free() {},
});

const HEAD_DIMS = [64, 80, 96, 128, 256];
const DTYPES = ["float32", "float16", "bfloat16"] as const;
const KV_HEADS = 2;
/** Query heads per KV head; a group of threads computes up to 4 together. */
const HEADS_PER_KV = [1, 2, 3, 4];
/** One alone, for MLX passes small inputs in another address space. */
const TOKENS = [1, 16];

export function recordLaunches(): readonly Launch[] {
  openMlx(findLibrary(), { device: "cpu" });

  for (const headDim of HEAD_DIMS) {
    for (const dtype of DTYPES) {
      for (const headsPerKv of HEADS_PER_KV) {
        using _ = new Scope();
        const heads = KV_HEADS * headsPerKv;
        const attention = new PagedAttention(
          "metal",
          { heads, kvHeads: KV_HEADS, headDim },
          dtype,
          recordedKernel,
        );
        const pool = zeros([4, KV_HEADS, 32, headDim], dtype);
        const pools = { keys: pool, values: pool };
        for (const tokens of TOKENS) {
          const qkv = zeros([tokens, (heads + 2 * KV_HEADS) * headDim], dtype);
          const rows = Array.from({ length: tokens }, () => ({ length: 1, blocks: [0] }));
          const tables = array(packTables(rows, 8));
          const places = array(packPlaces(rows.map(() => ({ position: 0, slot: 0, row: 0 }))));
          for (const work of worksOf(heads, headDim)) {
            attention.decode(qkv, pools, tables, work);
            attention.decode(qkv, pools, tables, work, 4);
            const queries = attention.prepare(qkv, pools, places, work);
            attention.attend(queries, pools, tables, places, work);
          }
          attention.copy(pool, array(new Int32Array(2 * tokens)));
        }
        attention.free();
      }
    }
  }
  return launches;
}

/** A layer that does nothing to heads and scores, and one that does everything. */
function worksOf(heads: number, headDim: number): LayerWork[] {
  const norm = zeros([headDim], "float32");
  const wavelengths = zeros([headDim / 2], "float32");
  return [
    { scale: 1 },
    {
      norms: { query: norm, key: norm, eps: 1e-6 },
      rope: { dims: headDim, wavelengths, magnitude: 1 },
      scale: 1,
      window: 128,
      sinks: zeros([heads], "float32"),
      softcap: 50,
    },
  ];
}
