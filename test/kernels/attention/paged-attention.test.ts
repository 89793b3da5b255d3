// The kernels against plain arithmetic: a CPU's operations, or with `MLX_SERVE_BACKEND=cuda bun test test/kernels`
// the GPU's kernels. On a CPU some of the CUDA kernels and all of the Metal kernels are run too, emulated.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { warpgroupChunks } from "../../../src/device/cuda.ts";
import { PagedAttention, packTiles } from "../../../src/kernels/attention/paged-attention.ts";
import { gpuFacts } from "../../../src/kernels/host/gpu.ts";
import type { MakeKernel } from "../../../src/mlx/kernel.ts";
import { zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { type AttentionCase, checkAttention } from "../../support/checked-attention.ts";
import { type ChunkCase, checkChunks } from "../../support/checked-chunks.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";

const mlx = useMlx();
const kind = backend();

const sized = <T extends object>(
  [headDim, kvHeads, headsPerKv]: [headDim: number, kvHeads: number, headsPerKv: number],
  dtype: AttentionCase["dtype"],
  more?: T,
) => ({ headDim, kvHeads, headsPerKv, dtype, ...more! });

const cases: AttentionCase[] = [
  ...[64, 80, 96, 128, 192, 256, 512].flatMap((headDim) =>
    (["float32", "float16", "bfloat16"] as const).map((dtype) =>
      sized([headDim, 2, 2], dtype, { rotaryDims: headDim }),
    ),
  ),
  ...[1, 3, 4, 7, 8].map((headsPerKv) => sized([64, 3, headsPerKv], "float32")),
  sized([128, 8, 2], "bfloat16", { normed: true, rotaryDims: 128 }),
  sized([64, 2, 2], "float32", { normed: true, rotaryDims: 32 }),
  sized([64, 2, 4], "float32", { scores: { window: 40 } }),
  sized([64, 2, 4], "float32", { scores: { softcap: 2 } }),
  ...[20, 32, 128].map((window) =>
    sized([64, 2, 4], "float32", { scores: { window, chunked: true } }),
  ),
  sized([64, 2, 2], "float32", { normed: true, valuesNormed: true }),
  sized([512, 1, 8], "bfloat16", { normed: true, valuesNormed: true, rotaryDims: 512, splits: 4 }),
  sized([64, 2, 4], "float32", { scores: { sinks: true } }),
  sized([64, 2, 8], "float32", { splits: 4, scores: { sinks: true, window: 70 } }),
  sized([128, 2, 2], "float32", { splits: 8 }),
  // On tensor cores, where there are some.
  ...[1, 7, 16].map((headsPerKv) => sized([64, 2, headsPerKv], "bfloat16", { rotaryDims: 32 })),
  ...[1, 20, 100].map((window) => sized([128, 2, 4], "float16", { scores: { window } })),
  sized([64, 2, 4], "float16", { scores: { softcap: 2, sinks: true } }),
  sized([256, 2, 4], "float16", { normed: true, splits: 4, scores: { sinks: true, window: 70 } }),
  sized([128, 8, 2], "bfloat16", { rotaryDims: 128, splits: 8 }),
  sized([128, 2, 5], "bfloat16", {
    rotaryDims: 128,
    splits: 4,
    scores: { window: 100, chunked: true },
  }),
  sized([16, 2, 2], "float32", { rotaryDims: 16 }),
];

/** With sequences that become long in the middle of a prompt, and tokens before and after that length. */
const longCases: AttentionCase[] = [
  sized([64, 2, 2], "float32", { rotaryDims: 64, longBeyond: 110, scores: { sinks: true } }),
  sized([128, 1, 3], "bfloat16", { rotaryDims: 96, longBeyond: 130 }),
];
cases.push(...longCases);

/** Shapes that the GPU kernels do not support. */
const cpuCases: AttentionCase[] = [
  sized([8, 2, 2], "float32", { rotaryDims: 8 }),
  sized([40, 1, 5], "float32", { rotaryDims: 20 }),
  sized([100, 1, 3], "float32", { normed: true }),
  sized([128, 1, 40], "float32", { scores: { window: 1 } }),
  sized([64, 2, 2], "float32", { scores: { softcap: 50, window: 33 } }),
];

describe(`kernels on ${kind}`, () => {
  for (const each of kind === "cpu" ? [...cases, ...cpuCases] : cases) {
    test(JSON.stringify(each), () => checkAttention(each, kind));
  }
});

describe.skipIf(kind !== "cpu")("CUDA kernels, emulated", () => {
  const some: AttentionCase[] = [
    sized([64, 1, 2], "float32", { normed: true, rotaryDims: 32 }),
    sized([128, 1, 2], "bfloat16", { normed: true, rotaryDims: 128 }),
    sized([64, 1, 7], "float16", { scores: { window: 20, softcap: 2 } }),
    sized([64, 1, 4], "bfloat16", { splits: 4, scores: { sinks: true } }),
    sized([64, 1, 2], "bfloat16", {
      normed: true,
      valuesNormed: true,
      scores: { window: 50, chunked: true },
    }),
    sized([512, 1, 2], "bfloat16", { normed: true, rotaryDims: 512 }),
    ...longCases,
  ];
  for (const each of some) {
    test(JSON.stringify(each), () => checkAttention(each, { emulated: "cuda" }), 120_000);
  }

  const clustered: AttentionCase[] = [
    sized([128, 2, 3], "bfloat16", { rotaryDims: 128, splits: 8 }),
    sized([64, 1, 4], "float16", { normed: true, splits: 2, scores: { sinks: true, window: 60 } }),
  ];
  for (const each of clustered) {
    const by = { emulated: "cuda", hopper: { groups: 132 } } as const;
    test(`clusters: ${JSON.stringify(each)}`, () => checkAttention(each, by), 120_000);
  }

  test("clusters of more than two are not for more groups than find room at once", () => {
    const kernelOf = (tokens: number, splits: number): string => {
      using _ = new Scope();
      let made = "";
      const make: MakeKernel = (_, { name }) => {
        made = name;
        throw new Error(name);
      };
      const shape = { heads: 16, kvHeads: 8, headDim: 64 };
      const attention = new PagedAttention("cuda", shape, "bfloat16", make, { groups: 132 });
      const pool = zeros([1, 8, 32, 64], "bfloat16");
      const tables = zeros([1 + 2 * tokens], "int32");
      const qkv = zeros([tokens, 32 * 64], "bfloat16");
      const pools = { keys: pool, values: pool };
      expect(() => attention.decode(qkv, pools, tables, { scale: 1 }, splits)).toThrow(made);
      attention.free();
      return made;
    };
    expect(kernelOf(4, 8)).toContain("decode_cluster_8");
    expect(kernelOf(8, 8)).toContain("decode_parts");
    expect(kernelOf(32, 2)).toContain("decode_cluster_2");
  });

  const chunks: ChunkCase[] = [
    sized([64, 1, 2], "bfloat16"),
    sized([80, 1, 3], "float16", { scores: { window: 50, softcap: 2, sinks: true } }),
    sized([64, 1, 2], "bfloat16", { scores: { window: 50, chunked: true } }),
    sized([64, 2, 1], "float16", { hopper: { groups: 3 } }),
    sized([128, 1, 3], "bfloat16", {
      hopper: { groups: 3 },
      scores: { window: 150, softcap: 2, sinks: true },
    }),
    sized([128, 2, 2], "bfloat16", { hopper: { groups: 5 } }),
    // Tiles that begin within a token, where sinks count for much.
    sized([64, 1, 3], "float16", { hopper: { groups: 3 }, scores: { window: 3, sinks: true } }),
    ...[
      { groups: 3, keys: 64, stages: 2 },
      { groups: 0, keys: 64, stages: 3 },
    ].map((hopper) => sized([64, 1, 2], "bfloat16", { hopper })),
    sized([256, 1, 2], "bfloat16", {
      hopper: { groups: 3 },
      scores: { window: 100, chunked: true },
    }),
  ];
  for (const each of chunks) {
    test(`chunks: ${JSON.stringify(each)}`, () => checkChunks(each, emulatedKernel), 120_000);
  }
});

describe.skipIf(kind !== "cpu")("Metal kernels, emulated", () => {
  for (const each of cases) {
    // More of them take longer and go no other way. What is shared is the same for all types and scores.
    const isPlain = each.dtype === "float32" && each.rotaryDims === each.headDim;
    const sharing = isPlain || each.normed || each.splits !== undefined;
    const few = { ...each, kvHeads: Math.min(each.kvHeads, 2), sharing };
    test(JSON.stringify(few), () => checkAttention(few, { emulated: "metal" }), 120_000);
  }
});

const chunkCases: ChunkCase[] = [
  ...[64, 80, 96, 128, 256].flatMap((headDim) =>
    (["float16", "bfloat16"] as const).map((dtype) => sized([headDim, 2, 2], dtype)),
  ),
  ...[1, 7, 8].map((headsPerKv) => sized([64, 1, headsPerKv], "bfloat16")),
  ...[1, 20, 100].map((window) => sized([64, 2, 3], "float16", { scores: { window } })),
  ...[20, 64, 100].map((window) =>
    sized([128, 2, 5], "bfloat16", { scores: { window, chunked: true } }),
  ),
  sized([64, 2, 2], "float16", { scores: { softcap: 2 } }),
  sized([64, 2, 2], "float16", { scores: { sinks: true } }),
  ...[96, 128, 256].map((headDim) => {
    const scores = { window: 50, softcap: 2, sinks: true };
    return { headDim, kvHeads: 1, headsPerKv: 4, dtype: "bfloat16" as const, scores };
  }),
];

// On tensor cores, which only the CUDA kernels use.
describe.skipIf(kind !== "cuda")("chunks by tensor cores", () => {
  for (const each of chunkCases) {
    test(JSON.stringify(each), () => checkChunks(each));
  }
});

describe.skipIf(kind !== "cuda")("chunks by the tensor cores of the GPU at hand", () => {
  for (const each of chunkCases) {
    test(JSON.stringify(each), () =>
      checkChunks({ ...each, hopper: warpgroupChunks(gpuFacts(mlx.device)) }),
    );
  }
});

test("tiles with the longest context come first, padded with empty ones", () => {
  const chunks = [
    { start: 0, count: 5 },
    { start: 100, count: 2 },
    { start: 3, count: 8 },
  ];
  const tiles = [5, 2, 11, 4, 7, 4, 4, 1, 0, 4, 0, 0, 0, 0, 0, 0];
  expect([...packTiles(chunks, { most: 4, perToken: 1 })]).toEqual(tiles);
  const rows = [15, 6, 41, 4, 31, 10, 21, 10, 10, 5, 0, 10, 0, 0, 0, 0];
  expect([...packTiles(chunks, { most: 10, perToken: 3 })]).toEqual(rows);
});
