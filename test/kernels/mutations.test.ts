// Faults that are written into the kernels' source on purpose: the emulator, or the numbers, find each of them.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { openDevice } from "../../src/device/open.ts";
import { Products } from "../../src/kernels/product/product.ts";
import { PromptProducts } from "../../src/kernels/product/prompt-product.ts";
import { Lookups } from "../../src/kernels/token/lookup.ts";
import { SumNorms } from "../../src/kernels/token/sum-norm.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import { rmsNorm } from "../../src/mlx/fast.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import {
  astype,
  dequantize,
  matmul,
  multiply,
  quantize,
  sigmoid,
  split,
  subtract,
  swapAxes,
  take,
} from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { deviceChecks, outcomeOf } from "../../src/self-test/device-checks.ts";
import { type AttentionCase, checkAttention } from "../support/checked-attention.ts";
import { checkChunks } from "../support/checked-chunks.ts";
import { checkHeads } from "../support/checked-heads.ts";
import { orderedKernel } from "../support/emulated-kernel.ts";
import { hopper } from "../support/gpus.ts";
import { useMlx } from "../support/mlx.ts";
import { mutatedKernel } from "../support/mutated-kernel.ts";

useMlx();

const attention: AttentionCase = {
  headDim: 64,
  kvHeads: 2,
  headsPerKv: 1,
  dtype: "float32",
  normed: true,
  rotaryDims: 32,
};

/** What a comparison of numbers says. */
const WRONG = "toBeLessThan";

const mutations = [
  {
    name: "a barrier out",
    kernel: "attend",
    from: "  BARRIER;\n  SHARED float sums[",
    to: "  SHARED float sums[",
    found: /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
  },
  {
    name: "a barrier of a simdgroup in place of its group's",
    kernel: "attend",
    from: "  BARRIER;\n  SHARED float sums[",
    to: "  WARP_BARRIER;\n  SHARED float sums[",
    found: /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
  },
  {
    name: "a barrier out between lanes of a simdgroup",
    kernel: "prepare",
    from: "  WARP_BARRIER;\n  if (is_rotated) {",
    to: "  if (is_rotated) {",
    found: /mlx_serve_prepare .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
  },
  {
    name: "a wrong lane mask",
    kernel: "decode",
    from: "for (int mask = LANES / 2; mask > 0; mask /= 2)",
    to: "for (int mask = LANES / 4; mask > 0; mask /= 2)",
    found: WRONG,
  },
  {
    name: "a lane mask past the simdgroup",
    kernel: "decode",
    from: "for (int mask = LANES / 2; mask > 0; mask /= 2)",
    to: "for (int mask = 32; mask > 0; mask /= 2)",
    found: /mlx_serve_decode .*lane \d+ asks for what lane \d+ of its warp has/,
  },
  {
    name: "a wrong bound of what is read",
    kernel: "prepare",
    from: "long(index < ALL_HEADS ? index : 0)",
    to: "long(index + 1)",
    found: /mlx_serve_prepare .*lane \d+ reads 4 bytes at byte \d+ of qkv, which has \d+/,
  },
  {
    name: "a missing bound of what is written",
    kernel: "attend",
    from: "j < QUERIES * D; j += WARPS * 32) prepared[j]",
    to: "j < WARPS * 32; j += WARPS * 32) prepared[j]",
    found: /mlx_serve_attend .*lane 255 takes element 255 of 'float \[64\]' at mlx_serve_attend/,
  },
  {
    name: "a swapped stride",
    kernel: "prepare",
    from: "((long(slot / 32) * KV_HEADS + ((index) - HEADS) % KV_HEADS) * 32 + slot % 32) * D",
    to: "((long(slot / 32) * 32 + slot % 32) * KV_HEADS + ((index) - HEADS) % KV_HEADS) * D",
    found: WRONG,
  },
  {
    name: "a lost normalization of a head",
    kernel: "decode",
    from: "x[i] * scale * norm.weights[i]",
    to: "x[i] * norm.weights[i]",
    found: WRONG,
  },
  {
    name: "a lost normalization of the weights",
    kernel: "attend",
    from: "Out(merged.sum / merged.total)",
    to: "Out(merged.sum)",
    found: WRONG,
  },
] as const;

/** Of attention by clusters, which only CUDA has. */
const MAY_BE_READ =
  /lane \d+ ends, and another group of its cluster may still read its shared memory/;
const READ_OF_OTHERS = `    #pragma unroll
    for (int i = 0; is_own && i < CLUSTER; i++) {
      load_shared_of(i, scores[i], partials + (q * LINE + D) * 4);
      load_shared_of(i, values[i], partials + (q * LINE + d) * 4);
    }`;
const OTHERS_MAY_END = `    // CTA 0 has read everything, so the other CTAs may exit.
    if (round == ROUNDS - 1) cluster_arrive();
`;
const clusterAttentionMutations = [
  {
    name: "a barrier of the cluster out before its groups are read",
    from: "  cluster_barrier();\n  constexpr",
    to: "  BARRIER;\n  constexpr",
    found: /which nobody has written before a barrier of the cluster/,
  },
  {
    name: "a group that ends before the first has read it",
    from: "  if (split != 0) cluster_wait();",
    to: "",
    found: MAY_BE_READ,
  },
  {
    name: "a group that may end before the last of it is read",
    from: `${READ_OF_OTHERS}\n${OTHERS_MAY_END}`,
    to: `${OTHERS_MAY_END}${READ_OF_OTHERS}`,
    found: MAY_BE_READ,
  },
  {
    name: "a group left out",
    from: "load_shared_of(i, values[i], ",
    to: "load_shared_of(0, values[i], ",
    found: WRONG,
  },
  {
    name: "heads that are read before the launch before has made them",
    from: "  if (!SHARES_KV) AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads qkv before it waits for the launch before/,
  },
] as const;

/** Of asynchronous copies, which only CUDA has. */
const NOT_WAITED_FOR = "of the dynamic shared memory, where a copy of lane";
const copyMutations = [
  {
    name: "a wait for too few copies",
    from: "cp_async_wait<1>();",
    to: "cp_async_wait<2>();",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a barrier out behind a wait",
    from: "cp_async_wait<1>();\n    BARRIER;",
    to: "cp_async_wait<1>();",
    found: /lane \d+ reads byte \d+ of the dynamic shared memory, which nobody has written/,
  },
  {
    name: "a copy to where another is under way",
    from: "(round + 2) % STAGES",
    to: "(round + 1) % STAGES",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a copy to what is still read",
    from: "fetch(second, index + 2 * GROUPS < items, (round + 2) % STAGES);",
    to: "fetch(second, index + 2 * GROUPS < items, stage);",
    found: NOT_WAITED_FOR,
  },
] as const;

/** Of asynchronous products, which only Hopper has, of what other warps load. */
const IS_READ =
  /a race: lane \d+ writes byte \d+ of the dynamic shared memory, which lane \d+ has read/;
const SCORES_COME = "      wgmma_wait<1>(score);\n";
const KEYS_LEFT = "      if (lane == 0 && n > 0) barrier_arrive(keys_empty(stage));\n";
const productMutations = [
  {
    name: "queries that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads queries before it waits for the launch before/,
  },
  {
    name: "operands that are not swizzled",
    from: "(pack % 8 ^ row % 8)",
    to: "(pack % 8)",
    found: WRONG,
  },
  {
    name: "values whose panels are elsewhere",
    from: "wgmma_operand(at, KEYS * LINE_BYTES)",
    to: "wgmma_operand(at, KEYS / 2 * LINE_BYTES)",
    found: WRONG,
  },
  {
    name: "a mask that leaves out the token itself",
    from: "key > last",
    to: "key >= last",
    found: WRONG,
  },
  {
    name: "no mask for a warp whose last row sees all keys",
    from: "lowest = item.position + (offset + warp * 16) / HEADS_PER_KV",
    to: "lowest = item.position + (offset + warp * 16 + 15) / HEADS_PER_KV",
    found: WRONG,
  },
  {
    name: "scores that are not waited for",
    from: "wgmma_wait<1>(score);",
    to: "wgmma_wait<2>(score);",
    found: NOT_WAITED_FOR,
  },
  {
    name: "weights that are written to while they are multiplied",
    from: "meanwhile.\n      wgmma_wait<0>(sum);",
    to: "meanwhile.\n      if (n == 0) wgmma_wait<0>(sum);\n      else wgmma_wait<1>(sum);",
    found: /what lane \d+ was multiplying was written to/,
  },
  {
    name: "queries that are not fenced",
    from: "cp_async_wait();\n      fence_proxy_async();",
    to: "cp_async_wait();",
    found:
      /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/,
  },
  {
    name: "zeros that are not fenced",
    from: "          fence_proxy_async();\n",
    to: "",
    found:
      /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/,
  },
  {
    name: "registers that are not fenced",
    from: "      wgmma_fence();\n      multiply_keys(stage);",
    to: "      multiply_keys(stage);",
    found: /lane \d+ multiplies with registers that it has not fenced/,
  },
  {
    name: "keys that are multiplied before they have come",
    from: "      barrier_wait(keys_full(stage), uses % 2);\n",
    to: "",
    found: NOT_WAITED_FOR,
  },
  {
    name: "values of empty slots that are zeroed before they have come",
    from: "        barrier_wait(values_arrived(stage), uses % 2);\n",
    to: "",
    found: /lane \d+ writes byte \d+ of the dynamic shared memory, where a copy of lane/,
  },
  {
    name: "values of empty slots",
    from: "if (first > 0 || last < KEYS - 1) {",
    to: "if (first > 0) {",
    found: WRONG,
  },
  {
    name: "a stage that is copied to without asking whether others are done with it",
    from: "if (uses > 0) barrier_wait(",
    to: "if (uses > 1) barrier_wait(",
    found: /arrives at a barrier where all have arrived/,
  },
  {
    name: "keys that are copied to before all warps are done with them",
    from: "barrier_init(keys_empty(stage), WARPS);",
    to: "barrier_init(keys_empty(stage), WARPS - 1);",
    found: IS_READ,
  },
  {
    name: "keys that are given back while they are multiplied",
    from: `${SCORES_COME}${KEYS_LEFT}`,
    to: `${KEYS_LEFT}${SCORES_COME}`,
    found: IS_READ,
  },
  {
    name: "keys of the first step that are given back too early",
    from: "if (lane == 0 && n > 0) barrier_arrive(keys_empty(stage));",
    to: "if (lane == 0) barrier_arrive(keys_empty(stage));",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a warpgroup that does not meet before its queries are copied anew",
    from: "        sync_warpgroup();\n        fetch_queries(next_item);",
    to: "        fetch_queries(next_item);",
    found: IS_READ,
  },
  {
    name: "sums that are not rescaled",
    from: "else if (keep[0] < 1 || keep[1] < 1)",
    to: "else if (false)",
    found: WRONG,
  },
  {
    name: "sums of two rows that are rescaled as one",
    from: "sum[i] *= keep[i / 2 % 2]",
    to: "sum[i] *= keep[0]",
    found: WRONG,
  },
  {
    name: "totals that are not rescaled",
    from: "total[1] * keep[1]",
    to: "total[1]",
    found: WRONG,
  },
  {
    name: "sums of one tile in those of the next",
    from: "adds || k > 0",
    to: "true",
    found: WRONG,
  },
  {
    name: "a tile that no group has",
    from: "GROUPS - 1 - cta_x",
    to: "cta_x + 1",
    found: WRONG,
  },
] as const;

type Mutation = { from: string; to: string; found: string | RegExp };

/** What is noticed where the warps that load come last. */
const NOT_THERE =
  /nobody has written|has not been waited for|has written and not fenced|a race|toBeLessThan/;
const loadingMutations = [
  {
    name: "values that are multiplied before they have come",
    from: "      if (n > 0) barrier_wait(values_full(value_stage), value_uses % 2);\n",
    to: "",
    found: NOT_THERE,
  },
  {
    name: "the last values, multiplied before they have come",
    from: "    barrier_wait(values_full(value_stage), value_uses % 2);\n    wgmma_fence();\n    multiply_values",
    to: "    wgmma_fence();\n    multiply_values",
    found: NOT_THERE,
  },
  {
    name: "values that are multiplied before empty slots are zeroed",
    from: "if (n > 0) barrier_wait(values_full(value_stage)",
    to: "if (n > 0) barrier_wait(values_arrived(value_stage)",
    found: NOT_THERE,
  },
  {
    name: "values that all lanes have not zeroed yet",
    from: "        WARP_BARRIER;\n        if (lane == 0) barrier_arrive(values_full(stage));",
    to: "        if (lane == 0) barrier_arrive(values_full(stage));",
    found: /lanes that never come there/,
  },
] as const;

/** Of products whose operands are in registers, and of clusters. */
const clusterMutations = [
  {
    name: "rows that are not swizzled",
    from: "(pack % 8 ^ row % 8)",
    to: "(pack % 8)",
    found: WRONG,
  },
  { name: "weights of another lane", from: "0x4440 + quad", to: "0x4440", found: WRONG },
  { name: "weights in the wrong half", from: "byte * 0x1001", to: "byte * 0x101", found: WRONG },
  {
    name: "scales of the step before",
    from: "load_factors(s);",
    to: "load_factors(max(s - 1, 0));",
    found: WRONG,
  },
  {
    name: "registers that are written to while they are multiplied",
    from: "wgmma_wait<1>();",
    to: "wgmma_wait<2>();",
    found: /what lane \d+ was multiplying was written to/,
  },
  {
    name: "sums that are not waited for",
    from: "wgmma_wait<0>(sum[t]);",
    to: "wgmma_wait<1>(sum[t]);",
    found: /never waited for its products|toBeLessThan|a race/,
  },
  {
    name: "registers that are not fenced",
    from: "    wgmma_fence();\n",
    to: "",
    found: /lane \d+ multiplies with registers that it has not fenced/,
  },
  {
    name: "copies that are not fenced",
    from: "    fence_proxy_async();\n",
    to: "",
    found:
      /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/,
  },
  {
    name: "a wait for too few copies",
    from: "cp_async_wait<STAGES - 3>();",
    to: "cp_async_wait<STAGES - 2>();",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a barrier out behind a wait",
    from: "fence_proxy_async();\n    BARRIER;",
    to: "fence_proxy_async();",
    found: /which nobody has written|a race|has not been waited for/,
  },
  {
    name: "a copy to what is still multiplied",
    from: "fetch_rows(s + STAGES - 2);",
    to: "fetch_rows(s + STAGES - 1);",
    found: /where a copy of lane \d+ has not been waited for|a race/,
  },
  {
    name: "rows that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads x before it waits for the launch before/,
  },
  {
    name: "a barrier of the group in place of its cluster's",
    from: "if (SHARES > 1) cluster_barrier();\n  else BARRIER;",
    to: "BARRIER;",
    found: /which nobody has written before a barrier of the cluster/,
  },
  {
    name: "a group that ends before others have read its sums",
    from: "sums.\n  if (SHARES > 1) cluster_barrier();",
    to: "sums.\n",
    found: MAY_BE_READ,
  },
  {
    name: "the sums of a group left out",
    from: "load_shared_of(i / 2, ",
    to: "load_shared_of(0, ",
    found: WRONG,
  },
] as const;

/** 50 rows with a matrix in 4 bits, by groups of two that split more steps than they have stages. */
function checkCluster(make: MakeKernel): void {
  using _ = new Scope();
  const quantization = { mode: "affine", groupSize: 64, bits: 4 } as const;
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), "bfloat16");
  const [x, matrix] = [random(1, 50, 768), quantize(random(2, 16, 768), quantization)];
  const groups = { tiles: 1, shares: 2, step: 64, stages: 4, leastRows: 50 };
  const products = new Products(hopper, make, undefined, groups);
  try {
    const found = products.product(x, { kind: "packed", matrix, quantization }, {});
    const exact = dequantize(matrix, quantization, "float32");
    const expected = matmul(astype(x, "float32"), swapAxes(exact, 0, 1));
    const off = subtract(astype(found, "float32"), expected).numbers();
    expect(Math.max(...off.map(Math.abs))).toBeLessThan(1);
  } finally {
    products.free();
  }
}

/** Of products of a cluster whose groups copy their sums to each other. */
const denseMutations = [
  {
    name: "rows that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads x before it waits for the launch before/,
  },
  {
    name: "a barrier out behind a wait",
    from: "fence_proxy_async();\n    BARRIER;\n    const unsigned stage",
    to: "fence_proxy_async();\n    const unsigned stage",
    found: /which nobody has written|a race|has not been waited for/,
  },
  {
    name: "a copy to what is still multiplied",
    from: "STAGES - 2;\n  constexpr int MATRIX",
    to: "STAGES - 1;\n  constexpr int MATRIX",
    found: /where a copy of lane \d+ has not been waited for|a race/,
  },
  {
    name: "sums that are copied and not fenced",
    from: "    fence_proxy_async();\n    // The other CTAs",
    to: "    // The other CTAs",
    found: /which lane \d+ has written and not fenced/,
  },
  {
    name: "sums that are copied before all warps have them",
    from: "  BARRIER;\n  if (SHARES > 1) {\n    if (thread_index < SHARES",
    to: "  if (SHARES > 1) {\n    if (thread_index < SHARES",
    found: /which nobody has written|a race/,
  },
  {
    name: "sums of others that are not waited for",
    from: "    barrier_wait(barrier, 0);\n",
    to: "",
    found: /where a copy of lane \d+ has not been waited for|which nobody has written/,
  },
  {
    name: "a group that ends before others have its sums",
    from: "exit.\n  if (SHARES > 1) cluster_wait();",
    to: "exit.\n",
    found: /which ends/,
  },
  {
    name: "the sums of another group in place of its own",
    from: "(s == share ? stages : received)",
    to: "received",
    found: /which nobody has written/,
  },
] as const;

/** 50 rows with a dense matrix, by groups of four that split more steps than they have stages. */
function checkDense(make: MakeKernel): void {
  using _ = new Scope();
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), "bfloat16");
  const [x, weight] = [random(1, 50, 4096), random(2, 64, 4096)];
  const products = new Products(hopper, make);
  try {
    const found = products.product(x, { kind: "dense", weight }, {});
    const expected = matmul(astype(x, "float32"), swapAxes(astype(weight, "float32"), 0, 1));
    const off = subtract(astype(found, "float32"), expected).numbers();
    expect(Math.max(...off.map(Math.abs))).toBeLessThan(2);
  } finally {
    products.free();
  }
}

/** Of products of prompts, whose groups copy to each other what they multiply. */
const IS_STORED = /what lane \d+ was storing was written to/;
const promptMutations = [
  {
    name: "inputs that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ writes maps before it waits for the launch before/,
  },
  {
    name: "maps and barriers that are used before they are made",
    from: "lane);\n  }\n  cluster_barrier();",
    to: "lane);\n  }",
    found: /reads byte \d+ of maps, which nobody has written|that was never made/,
  },
  {
    name: "a stage that is copied to once half of its warps are done with it",
    from: "CLUSTER_CTAS * WARPS);",
    to: "CLUSTER_CTAS * WARPS / 2);",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a stage that is copied to without asking whether others are done with it",
    from: "if (step >= STAGES) barrier_wait",
    to: "if (step >= 2 * STAGES) barrier_wait",
    found: /arrives at a barrier where all have arrived/,
  },
  {
    name: "a stage that is given back while it is still multiplied",
    from: "          wgmma_wait<1>();\n",
    to: "",
    found: NOT_WAITED_FOR,
  },
  {
    name: "steps that are multiplied before they have come",
    from: "        barrier_wait(full + stage * 8, step / STAGES % 2);\n",
    to: "",
    found: NOT_WAITED_FOR,
  },
  {
    name: "a share of the columns that nobody copies",
    from: "copy_columns(OWN + rank * SHARE, ",
    to: "copy_columns(OWN, ",
    found: /copies to byte \d+ of another group's memory, which that has used, or still does/,
  },
  {
    name: "sums of the tile before",
    from: "s > 0 || k > 0, x",
    to: "true, x",
    found: WRONG,
  },
  {
    name: "halves of a tile that are the same half",
    from: "past % 2 * SHARE",
    to: "past % 1 * SHARE",
    found: WRONG,
  },
  {
    name: "half a tile that gates itself",
    from: "tile.column + rank * SECOND",
    to: "tile.column",
    found: WRONG,
  },
  {
    name: "half a tile that waits for the columns of a whole one",
    from: "tile.is_half ? HALF_STAGE : STAGE",
    to: "STAGE",
    found: /waits at a barrier of shared memory for lanes that never come there/,
  },
  {
    name: "a tile that is left where there are clusters for its halves",
    from: "whole = all_tiles - halved, own_tiles = whole + halved * 2;",
    to: "whole = all_tiles - halved, own_tiles = whole + halved;",
    found: WRONG,
  },
  {
    name: "the gate and what it gates exchanged",
    from: "{sums[0], sums[1]};\n#ifndef PREPARES\n            gate_pair(pair, sums + SUMS / 2, x);",
    to: "{sums[SUMS / 2], sums[SUMS / 2 + 1]};\n#ifndef PREPARES\n            gate_pair(pair, sums, x);",
    found: WRONG,
  },
  {
    name: "a panel that is stored before all lanes have written it",
    from: "fence_proxy_async();\n        WARP_BARRIER;",
    to: "fence_proxy_async();",
    found:
      /a race: lane \d+ reads byte \d+ of the dynamic shared memory, which lane \d+ has written/,
  },
  {
    name: "a panel that is not fenced",
    from: "        fence_proxy_async();\n",
    to: "",
    found:
      /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/,
  },
  {
    name: "a panel that is written to while it is stored",
    from: "is_copied ? tensor_stores_wait<1>()",
    to: "is_copied ? tensor_stores_wait<2>()",
    found: IS_STORED,
  },
  {
    name: "a panel that other lanes write to while it is stored",
    from: "tensor_stores_wait<0>();\n        WARP_BARRIER;",
    to: "tensor_stores_wait<0>();",
    found: IS_STORED,
  },
  {
    name: "stores that are never waited for",
    from: "    if (lane == 0) tensor_stores_wait<0>();\n",
    to: "",
    found: /lane \d+ never waited for its stores/,
  },
  {
    name: "a group that ends while others copy to it",
    from: "at its barriers.\n  cluster_barrier();",
    to: "at its barriers.\n",
    found: /lane \d+ arrives at group \d+ of its cluster, which ends/,
  },
] as const;

/** Of those whose heads go on into attention. */
const headMutations = [
  {
    name: "a panel that is written to while the one of the tile before is stored",
    from: "is_copied ? tensor_stores_wait<1>() : tensor_stores_wait<0>();",
    to: "tensor_stores_wait<1>();",
    found:
      /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/,
  },
  {
    name: "keys that are read before all lanes have written them",
    from: "lane % 8 * 8;\n          WARP_BARRIER;",
    to: "lane % 8 * 8;",
    found: /a race: lane \d+ (reads|writes) byte \d+ of the dynamic shared memory/,
  },
  {
    name: "keys of rows that are not there",
    from: "if (token >= rows) break;",
    to: "",
    found: /reads 4 bytes at byte \d+ of places, which has \d+/,
  },
  {
    name: "values in the place of keys",
    from: "out_head >= HEADS + KV_HEADS ? values : keys",
    to: "out_head >= HEADS + KV_HEADS ? keys : values",
    found: WRONG,
  },
  {
    name: "the positions of one row for all",
    from: "find_angle(float(positions[r])",
    to: "find_angle(float(positions[0])",
    found: WRONG,
  },
  {
    name: "values that are rotated",
    from: "is_rotated = first + half < HEADS + KV_HEADS;",
    to: "is_rotated = true;",
    found: WRONG,
  },
  {
    name: "angles that are not brought within half a turn",
    from: "fmaf(turns, -6.28125f, angle)",
    to: "angle",
    found: WRONG,
  },
  {
    name: "queries of a sequence that ends with its tile left out",
    from: "places[3 * next_row + 2]",
    to: "places[3 * (next_row - 1) + 2]",
    found: WRONG,
  },
  {
    name: "queries of the last sequence left out",
    from: "next_row >= rows || ",
    to: "next_row < rows && ",
    found: WRONG,
  },
] as const;

/** 140 rows with gates, by two clusters of two groups: each has a tile and half of one, of more steps than stages. */
function checkPrompt(make: MakeKernel): void {
  using _ = new Scope();
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), "bfloat16");
  const [x, weight] = [random(1, 140, 320), random(2, 768, 320)];
  const prompts = new PromptProducts(hopper, make);
  try {
    const found = prompts.gated({ x, weight }, 4);
    const exact = matmul(astype(x, "float32"), swapAxes(astype(weight, "float32"), 0, 1));
    const [gate, up] = split(exact, 2);
    const expected = multiply(multiply(gate!, sigmoid(gate!)), up!);
    const most = (of: MlxArray) =>
      of.numbers().reduce((largest, each) => Math.max(largest, Math.abs(each)), 0);
    const off = subtract(astype(found, "float32"), expected);
    expect(most(off) / most(expected)).toBeLessThan(0.02);
  } finally {
    prompts.free();
  }
}

/** Of one token's product, whose weights are on their way while it computes. */
const streamMutations = [
  {
    name: "weights that are not waited for",
    from: "    barrier_wait(arrived(round), round / SLOTS % 2);\n",
    to: "",
    found: /reads byte 0 of places, which lane \d+ has written with no barrier/,
  },
  {
    name: "weights that were waited for the time before",
    from: "    barrier_wait(arrived(round), round / SLOTS % 2);\n",
    to: "    barrier_wait(arrived(round), 0);\n",
    found: /where a copy of lane \d+ has not been waited for/,
  },
  {
    name: "a slot that is filled while it is read",
    from: "if (round >= SLOTS) barrier_wait(arrived(round) + 8, (round / SLOTS - 1) % 2);",
    to: "",
    found: /a race|has not been waited for|all have arrived/,
  },
  {
    name: "a slot that nobody says is free",
    from: "if (lane == 0) barrier_arrive(arrived(round) + 8);",
    to: "",
    found: /waits at a barrier of shared memory for lanes that never come there/,
  },
  {
    name: "results of other warps that are read too early",
    from: "    sync_warps();\n    float all",
    to: "    float all",
    found: /a race|which nobody has written/,
  },
  {
    name: "a number of the token that is read too early",
    from: "  AWAIT_INPUTS;\n  #pragma",
    to: "  #pragma",
    found: /lane \d+ reads x before it waits for the launch before/,
  },
  {
    name: "a count of claims that stays for the launch behind",
    from: "if (place == ALL + GROUPS - 1) *next = 0;",
    to: "",
    found: WRONG,
  },
  {
    name: "tiles that two groups claim",
    from: "atomic_add(next, 1)",
    to: "(atomic_add(next, 1), 0)",
    found: /of made, which lane \d+ has written with no barrier between them/,
  },
  {
    name: "claimed tiles in the place of others",
    from: "kept_places[kept] = place;",
    to: "kept_places[kept] = cta_x + round * GROUPS;",
    found: /of made, which has 512/,
  },
  {
    name: "steps of odd rows the wrong way round",
    from: "is_second = of_pair ^ swapped",
    to: "is_second = of_pair",
    found: WRONG,
  },
  { name: "digits of another span", from: "column / SPANS * 4", to: "0", found: WRONG },
  { name: "what was added to weights left", from: "j % 2 ? 64 : 1024", to: "1024", found: WRONG },
];

/** A token with two matrices in 4 bits, twice, by two groups that claim the tiles behind their slots. */
function checkStream(make: MakeKernel): void {
  using _ = new Scope();
  const quantization = { mode: "affine", groupSize: 64, bits: 4 } as const;
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), "bfloat16");
  const [x, weight] = [random(1, 1, 2048), random(2, 2048)];
  const matrix = quantize(random(3, 512, 2048), quantization);
  const products = new Products({ ...hopper, multiprocessors: 2 }, make);
  try {
    const fused = { norm: { weight, eps: 1e-6 }, isGated: true };
    const packed = { kind: "packed", matrix, quantization } as const;
    products.product(x, packed, fused).evaluate();
    const found = products.product(x, packed, fused);
    const exact = dequantize(matrix, quantization, "float32");
    const normed = rmsNorm(astype(x, "float32"), astype(weight, "float32"), 1e-6);
    const [gate, up] = split(matmul(normed, swapAxes(exact, 0, 1)), 2);
    const expected = multiply(multiply(gate!, sigmoid(gate!)), up!).numbers();
    const largest = Math.max(...expected.map(Math.abs));
    const off = astype(found, "float32")
      .numbers()
      .map((number, i) => number - expected[i]!);
    expect(Math.max(...off.map(Math.abs)) / largest).toBeLessThan(0.01);
  } finally {
    products.free();
  }
}

const normMutations = [
  {
    name: "rows that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads residual before it waits for the launch before/,
  },
  {
    name: "a barrier out before the squares of all warps are added",
    from: "  BARRIER;\n",
    to: "",
    found: /lane \d+ reads byte \d+ of squares, which nobody has written|a race/,
  },
  {
    name: "squares that are left out",
    from: "for (int mask = 16; mask > 0; mask /= 2) square +=",
    to: "for (int mask = 8; mask > 0; mask /= 2) square +=",
    found: WRONG,
  },
  {
    name: "packs past the row",
    from: "if (at < PACKS) {\n      factor",
    to: "{\n      factor",
    found: /lane \d+ reads 16 bytes at byte \d+ of weight, which has/,
  },
] as const;

/** Of 2 rows that leave threads of their group without a pack. */
function checkNorm(make: MakeKernel): void {
  using _ = new Scope();
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), "bfloat16");
  const [x, weight] = [random(1, 2, 1032), random(2, 1032)];
  const norms = new SumNorms(make);
  try {
    const found = norms.norm(x, weight, 1e-5)!;
    const off = subtract(found, rmsNorm(x, weight, 1e-5)).numbers();
    expect(Math.max(...off.map(Math.abs))).toBeLessThan(0.05);
  } finally {
    norms.free();
  }
}

const lookupMutations = [
  {
    name: "tokens that are read before the launch before has made them",
    from: "  AWAIT_INPUTS;\n",
    to: "",
    found: /lane \d+ reads tokens before it waits for the launch before/,
  },
  {
    name: "a row behind the last",
    from: "token < ROWS ? token : ROWS - 1",
    to: "token",
    found: /lane \d+ reads 16 bytes at byte \d+ of matrix, which has/,
  },
  {
    name: "the row of another token of the group",
    from: "from[rows[i] * PACKS",
    to: "from[rows[0] * PACKS",
    found: WRONG,
  },
  {
    name: "packs past the row",
    from: "at < PACKS;",
    to: "at < PACKS + THREADS;",
    found: /lane \d+ reads 16 bytes at byte \d+ of matrix, which has|of found, which/,
  },
] as const;

/** Of a group's tokens one after the other, the last of which has no row. */
function checkLookup(make: MakeKernel): void {
  using _ = new Scope();
  const matrix = astype(normal(key(1), [10, 72]), "bfloat16");
  const tokens = Uint32Array.from({ length: 1024 }, (_, i) => (i * 7) % 10);
  const lookups = new Lookups(make);
  try {
    const expected = take(matrix, array(tokens.with(1023, 9)));
    const found = lookups.rows(matrix, array(tokens.with(1023, 10)))!;
    const off = subtract(found, expected).numbers();
    expect(Math.max(...off.map(Math.abs))).toBeLessThan(1e-9);
  } finally {
    lookups.free();
  }
}

/** A check that finds nothing in the kernel as it is, and each of these in it. */
function expectNoticed(
  title: string,
  kernel: string,
  check: (make: MakeKernel) => void,
  mutations: readonly { name: string; from: string; to: string; found: string | RegExp }[],
): void {
  describe.skipIf(backend() !== "cpu")(title, () => {
    test("nothing where nothing is wrong", () => {
      const same = mutatedKernel(kernel, "\n  AWAIT_INPUTS;\n", "\n  AWAIT_INPUTS; \n");
      expect(() => check(same)).not.toThrow();
    }, 60_000);

    test.each(mutations)(
      "$name",
      ({ from, to, found }) => {
        expect(() => check(mutatedKernel(kernel, from, to))).toThrow(found);
      },
      60_000,
    );
  });
}

expectNoticed(
  "in an emulated CUDA kernel of a norm the tests notice",
  "norm",
  checkNorm,
  normMutations,
);

expectNoticed(
  "in an emulated CUDA kernel that looks rows up the tests notice",
  "lookup",
  checkLookup,
  lookupMutations,
);

describe.skipIf(backend() !== "cpu")("in an emulated Metal kernel the tests notice", () => {
  test.each(mutations)(
    "$name",
    ({ kernel, from, to, found }) => {
      const make = mutatedKernel(kernel, from, to);
      expect(() => checkAttention(attention, { emulated: "metal", make })).toThrow(found);
    },
    60_000,
  );
});

describe.skipIf(backend() !== "cpu")(
  "in an emulated CUDA kernel by clusters the tests notice",
  () => {
    test.each(clusterAttentionMutations)(
      "$name",
      ({ from, to, found }) => {
        const make = mutatedKernel("decode_cluster_4", from, to);
        const by = { emulated: "cuda", make, hopper: { groups: 132 } } as const;
        const each = { ...attention, dtype: "bfloat16", splits: 4 } as const;
        expect(() => checkAttention(each, by)).toThrow(found);
      },
      60_000,
    );
  },
);

describe.skipIf(backend() !== "cpu")(
  "in an emulated CUDA kernel with copies the tests notice",
  () => {
    test.each(copyMutations)(
      "$name",
      ({ from, to, found }) => {
        const make = mutatedKernel("scan_tokens_49152", from, to);
        const device = openDevice("cuda", { architecture: "sm_90" }, make);
        const check = deviceChecks(device).find(({ name }) => /^scan of tokens.*bf/.test(name))!;
        expect(() => outcomeOf(check, device)).toThrow(found);
        device.free();
      },
      60_000,
    );
  },
);

describe.skipIf(backend() !== "cpu")(
  "in an emulated CUDA kernel with products of warpgroups the tests notice",
  () => {
    const expectFound = ({ from, to, found }: Mutation, kernel?: MakeKernel) => {
      const make = mutatedKernel("warpgroup_chunks", from, to, kernel);
      const shape = { headDim: 128, kvHeads: 1, headsPerKv: 1 };
      expect(() =>
        checkChunks({ ...shape, dtype: "bfloat16", hopper: { groups: 2 } }, make),
      ).toThrow(found);
    };
    test.each(productMutations)("$name", (each) => expectFound(each), 60_000);
    test.each(loadingMutations)("$name", (each) => expectFound(each, orderedKernel), 60_000);

    test("nothing where lanes run in their order and there is no fault", () => {
      const shape = { headDim: 128, kvHeads: 1, headsPerKv: 1 };
      checkChunks({ ...shape, dtype: "bfloat16", hopper: { groups: 2 } }, orderedKernel);
    }, 60_000);
  },
);

expectNoticed(
  "in an emulated CUDA kernel that streams weights the tests notice",
  "streamed_vector_139264",
  checkStream,
  streamMutations,
);

expectNoticed(
  "in an emulated CUDA kernel with products of a cluster the tests notice",
  "warpgroup_product_54272",
  checkCluster,
  clusterMutations,
);

expectNoticed(
  "in an emulated CUDA kernel whose groups copy sums to each other the tests notice",
  "dense_product_198664",
  checkDense,
  denseMutations,
);

expectNoticed(
  "in an emulated CUDA kernel whose groups copy what they multiply to each other the tests notice",
  "prompt_product",
  checkPrompt,
  promptMutations,
);

expectNoticed(
  "in such a kernel whose heads go on into attention the tests notice",
  "prompt_heads",
  (make) =>
    checkHeads(
      {
        dtype: "bfloat16",
        rows: 520,
        inputs: 128,
        heads: 2,
        kvHeads: 1,
        groups: 2,
        isRotated: true,
        begins: [256],
      },
      make,
    ),
  headMutations,
);

test.skipIf(backend() !== "cpu")(
  "a barrier of each group in place of its cluster's is noticed where lanes run in their order",
  () => {
    checkPrompt(orderedKernel);
    const [from, to] = ["cluster_barrier();\n  // Tile", "BARRIER;\n  // Tile"];
    const make = mutatedKernel("prompt_product", from, to, orderedKernel);
    expect(() => checkPrompt(make)).toThrow(/that was never made/);
  },
  60_000,
);
