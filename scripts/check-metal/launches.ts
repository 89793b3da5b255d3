// What the program asks of MLX on Metal, for every shape that matters. MLX has no Metal here, so the class
// that would hand a kernel to it is replaced by one that writes down what it was given.
import { findLibrary } from "../../ffi/native.ts";
import type { LayerWork } from "../../src/kernels/paged-attention.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { KernelLaunch, KernelSource } from "../../src/mlx/kernel.ts";
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

class RecordedKernel {
  readonly #kernel: KernelSource;

  constructor(_language: string, kernel: KernelSource) {
    this.#kernel = kernel;
  }

  configure(launch: KernelLaunch) {
    const call = (...inputs: MlxArray[]) => {
      const shapes = inputs.map(({ dtype, shape }) => ({ dtype, shape }));
      launches.push({ kernel: this.#kernel, launch, inputs: shapes });
      return launch.outputs.map(({ shape, dtype }) => zeros(shape, dtype));
    };
    return { call, free() {} };
  }

  free() {}
}

const HEAD_DIMS = [64, 80, 96, 128, 256];
const DTYPES = ["float32", "float16", "bfloat16"] as const;
const KV_HEADS = 2;
/** Queries for a head of keys; a group of threads computes up to 4 together. */
const SHARERS = [1, 2, 3, 4];
/** One alone, for MLX passes small inputs in another address space. */
const TOKENS = [1, 16];

export async function recordLaunches(): Promise<readonly Launch[]> {
  Bun.plugin({
    name: "kernels that are only written down",
    setup(build) {
      const exports = { Kernel: RecordedKernel };
      const filter = /\/src\/mlx\/kernel\.ts$/;
      build.onLoad({ filter }, () => ({ exports, loader: "object" }));
    },
  });
  // Not before: they import what is replaced.
  const { PagedAttention, packPlaces } = await import("../../src/kernels/paged-attention.ts");
  const { tablesOf } = await import("../../src/model/paged-kv-store.ts");
  openMlx(findLibrary(), { device: "cpu" });

  for (const headDim of HEAD_DIMS) {
    for (const dtype of DTYPES) {
      for (const sharers of SHARERS) {
        using _ = new Scope();
        const heads = KV_HEADS * sharers;
        const attention = new PagedAttention("metal", { heads, kvHeads: KV_HEADS, headDim }, dtype);
        const pool = zeros([4, KV_HEADS, 32, headDim], dtype);
        const pools = { keys: pool, values: pool };
        for (const tokens of TOKENS) {
          const qkv = zeros([tokens, (heads + 2 * KV_HEADS) * headDim], dtype);
          const rows = Array.from({ length: tokens }, () => ({ start: 0, count: 1, table: [0] }));
          const tables = array(tablesOf(rows).tables);
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
      turn: { dims: headDim, wavelengths, magnitude: 1 },
      scale: 1,
      window: 128,
      sinks: zeros([heads], "float32"),
      softcap: 50,
    },
  ];
}
