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

const sizes = { headDim: 64, kvHeads: 2, headsPerKv: 1, rotaryDims: 32 };
const attention: AttentionCase = { ...sizes, dtype: "float32", normed: true };

/** By name, a text of the kernel with «what is there→what replaces it»; and the error, unless only numbers are wrong. */
type Mutations = Record<string, string | [edit: string, found: string | RegExp]>;

/** What a comparison of numbers says. */
const WRONG = "toBeLessThan";
const UNFENCED =
  /lane \d+ multiplies byte \d+ of the dynamic shared memory, which lane \d+ has written and not fenced/;
const UNWRITTEN = /lane \d+ reads byte \d+ of the dynamic shared memory, which nobody has written/;
const UNFENCED_REGISTERS = /lane \d+ multiplies with registers that it has not fenced/;
const IS_MULTIPLIED = /what lane \d+ was multiplying was written to/;
const IS_COPIED = /where a copy of lane \d+ has not been waited for|a race/;
const NO_BARRIER = /which nobody has written|a race|has not been waited for/;
const WAITS_FOREVER = /waits at a barrier of shared memory for lanes that never come there/;
const early = (access: string) =>
  new RegExp(`lane \\d+ ${access} before it waits for the launch before`);

const mutations: Record<string, Mutations> = {
  attend: {
    "no barrier": [
      "«  BARRIER;\n→»  SHARED float sums[",
      /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
    ],
    "a barrier of the simdgroup alone": [
      "  «BARRIER→WARP_BARRIER»;\n  SHARED float sums[",
      /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
    ],
    "a missing bound of a write": [
      "j < «QUERIES * D→WARPS * 32»; j += WARPS * 32) prepared[j]",
      /mlx_serve_attend .*lane 255 takes element 255 of 'float \[64\]' at mlx_serve_attend/,
    ],
    "a lost normalization of the weights": "Out(merged.«sum / merged.total→sum»)",
  },
  prepare: {
    "no barrier between lanes of a simdgroup": [
      "«  WARP_BARRIER;\n→»  if (is_rotated) {",
      /mlx_serve_prepare .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
    ],
    "a wrong bound of a read": [
      "long(index «< ALL_HEADS ? index : 0→+ 1»)",
      /mlx_serve_prepare .*lane \d+ reads 4 bytes at byte \d+ of qkv, which has \d+/,
    ],
    "a swapped stride":
      "((long(slot / 32) * «KV_HEADS + ((index) - HEADS) % KV_HEADS) * 32 + slot % 32→32 + slot % 32) * KV_HEADS + ((index) - HEADS) % KV_HEADS») * D",
  },
  decode: {
    "a wrong lane mask": "for (int mask = LANES / «2→4»; mask > 0; mask /= 2)",
    "a lane mask past the simdgroup": [
      "for (int mask = «LANES / 2→32»; mask > 0; mask /= 2)",
      /mlx_serve_decode .*lane \d+ asks for what lane \d+ of its warp has/,
    ],
    "a lost normalization of a head": "x[i] *« scale *→» norm.weights[i]",
  },
};

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
const clusterAttentionMutations: Mutations = {
  "no cluster barrier before other groups are read": [
    "  «cluster_barrier()→BARRIER»;\n  constexpr",
    /which nobody has written before a barrier of the cluster/,
  ],
  "a group that exits before it is read": ["«  if (split != 0) cluster_wait();→»", MAY_BE_READ],
  "a group that may exit before its last read": [
    `«${READ_OF_OTHERS}\n${OTHERS_MAY_END}→${OTHERS_MAY_END}${READ_OF_OTHERS}»`,
    MAY_BE_READ,
  ],
  "a group left out": "load_shared_of(«i→0», values[i], ",
  "heads read too early": ["«  if (!SHARES_KV) AWAIT_INPUTS;\n→»", early("reads qkv")],
};

/** Of asynchronous copies, which only CUDA has. */
const NOT_WAITED_FOR = "of the dynamic shared memory, where a copy of lane";
const copyMutations: Mutations = {
  "a wait for too few copies": ["cp_async_wait<«1→2»>();", NOT_WAITED_FOR],
  "no barrier after a wait": ["cp_async_wait<1>();«\n    BARRIER;→»", UNWRITTEN],
  "a copy into a stage that is being filled": ["(round + «2→1») % STAGES", NOT_WAITED_FOR],
  "a copy into a stage that is still read": [
    "fetch(second, index + 2 * GROUPS < items, «(round + 2) % STAGES→stage»);",
    NOT_WAITED_FOR,
  ],
};

/** Of asynchronous products, which only Hopper has, of what other warps load. */
const IS_READ =
  /a race: lane \d+ writes byte \d+ of the dynamic shared memory, which lane \d+ has read/;
const SCORES_COME = "      wgmma_wait<1>(score);\n";
const KEYS_LEFT = "      if (lane == 0 && n > 0) barrier_arrive(keys_empty(stage));\n";
const productMutations: Mutations = {
  "queries read too early": ["«  AWAIT_INPUTS;\n→»", early("reads queries")],
  "operands that are not swizzled": "(pack % «8 ^ row % 8→8»)",
  "values whose panels are elsewhere": "wgmma_operand(at, KEYS «→/ 2 »* LINE_BYTES)",
  "a mask that leaves out the token itself": "key >«→=» last",
  "no mask for a warp whose last row sees all keys":
    "lowest = item.position + (offset + warp * «16→16 + 15») / HEADS_PER_KV",
  "scores that are not waited for": ["wgmma_wait<«1→2»>(score);", NOT_WAITED_FOR],
  "weights overwritten while they are multiplied": [
    "«wgmma_wait<0→if (n == 0) wgmma_wait<0>(sum);\n      else wgmma_wait<1»>(sum);\n      if (lane",
    IS_MULTIPLIED,
  ],
  "unfenced queries": ["cp_async_wait();«\n      fence_proxy_async();→»", UNFENCED],
  "unfenced zeros": ["«          fence_proxy_async();\n→»", UNFENCED],
  "unfenced registers": [
    "«      wgmma_fence();\n→»      multiply_keys(stage);",
    UNFENCED_REGISTERS,
  ],
  "keys multiplied before they arrived": [
    "«      barrier_wait(keys_full(stage), uses % 2);\n→»",
    NOT_WAITED_FOR,
  ],
  "empty slots zeroed before their values arrived": [
    "«        barrier_wait(values_arrived(stage), uses % 2);\n→»",
    /lane \d+ writes byte \d+ of the dynamic shared memory, where a copy of lane/,
  ],
  "values of empty slots": "if (first > «0 || last < KEYS - 1→0») {",
  "a stage refilled before it is released": [
    "if (uses > «0→1») barrier_wait(",
    /arrives at a barrier where all have arrived/,
  ],
  "keys refilled before all release them": [
    "barrier_init(keys_empty(stage), «WARPS→WARPS - 1»);",
    IS_READ,
  ],
  "keys released while they are multiplied": [
    `«${SCORES_COME}${KEYS_LEFT}→${KEYS_LEFT}${SCORES_COME}»`,
    IS_READ,
  ],
  "keys of the first step released early": [
    "if (lane == «0 && n > 0→0») barrier_arrive(keys_empty(stage));",
    NOT_WAITED_FOR,
  ],
  "no warpgroup barrier before queries are refilled": [
    "«        sync_warpgroup();\n→»        fetch_queries(next_item);",
    IS_READ,
  ],
  "sums that are not rescaled": "else if («keep[0] < 1 || keep[1] < 1→false»)",
  "sums of two rows that are rescaled as one": "sum[i] *= keep[«i / 2 % 2→0»]",
  "totals that are not rescaled": "total[1]« * keep[1]→»",
  "sums of one tile in those of the next": "«adds || k > 0→true»",
  "a tile that no group has": "«GROUPS - 1 - cta_x→cta_x + 1»",
};

/** What is noticed where the warps that load come last. */
const NOT_THERE =
  /nobody has written|has not been waited for|has written and not fenced|a race|toBeLessThan/;
const loadingMutations: Mutations = {
  "values multiplied before they arrived": [
    "«      if (n > 0) barrier_wait(values_full(value_stage), value_uses % 2);\n→»",
    NOT_THERE,
  ],
  "the last values multiplied before they arrived": [
    "«    barrier_wait(values_full(value_stage), value_uses % 2);\n→»    wgmma_fence();\n    multiply_values",
    NOT_THERE,
  ],
  "values multiplied before empty slots are zeroed": [
    "if (n > 0) barrier_wait(«values_full→values_arrived»(value_stage)",
    NOT_THERE,
  ],
  "values that not all lanes have zeroed yet": [
    "«        WARP_BARRIER;\n→»        if (lane == 0) barrier_arrive(values_full(stage));",
    /lanes that never come there/,
  ],
};

/** Of products whose operands are in registers, and of clusters. */
const clusterMutations: Mutations = {
  "rows that are not swizzled": "(pack % «8 ^ row % 8→8»)",
  "weights of another lane": "«0x4440 + quad→0x4440»",
  "weights in the wrong half": "byte * «0x1001→0x101»",
  "scales of the step before": "load_factors(«s→max(s - 1, 0)»);",
  "registers overwritten too early": ["wgmma_wait<«1→2»>();", IS_MULTIPLIED],
  "sums that are not waited for": [
    "wgmma_wait<«0→1»>(sum[t]);",
    /never waited for its products|toBeLessThan|a race/,
  ],
  "unfenced registers": ["«    wgmma_fence();\n→»", UNFENCED_REGISTERS],
  "unfenced copies": ["«    fence_proxy_async();\n→»", UNFENCED],
  "a wait for too few copies": ["cp_async_wait<STAGES - «3→2»>();", NOT_WAITED_FOR],
  "no barrier after a wait": ["fence_proxy_async();«\n    BARRIER;→»", NO_BARRIER],
  "a copy into a stage being multiplied": ["fetch_rows(s + STAGES - «2→1»);", IS_COPIED],
  "rows read too early": ["«  AWAIT_INPUTS;\n→»", early("reads x")],
  "a group barrier in place of the cluster's": [
    "«if (SHARES > 1) cluster_barrier();\n  else →»BARRIER;",
    /which nobody has written before a barrier of the cluster/,
  ],
  "a group that exits too early": ["sums.\n«  if (SHARES > 1) cluster_barrier();→»", MAY_BE_READ],
  "the sums of a group left out": "load_shared_of(«i / 2→0», ",
};

function random(seed: number, ...shape: number[]): MlxArray {
  return astype(normal(key(seed), shape), "bfloat16");
}

function largest(values: MlxArray): number {
  return values.numbers().reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

function expectNear(found: MlxArray, expected: MlxArray, within: number): void {
  expect(largest(subtract(astype(found, "float32"), expected))).toBeLessThan(within);
}

function freed<T extends { free(): void }>(one: T): T & Disposable {
  return Object.assign(one, { [Symbol.dispose]: () => one.free() });
}

/** 50 rows with a matrix in 4 bits, by groups of two that split more steps than they have stages. */
function checkCluster(make: MakeKernel): void {
  using _ = new Scope();
  const quantization = { mode: "affine", groupSize: 64, bits: 4 } as const;
  const [x, matrix] = [random(1, 50, 768), quantize(random(2, 16, 768), quantization)];
  const groups = { tiles: 1, shares: 2, step: 64, stages: 4, leastRows: 50 };
  using products = freed(new Products(hopper, make, undefined, groups));
  const found = products.product(x, { kind: "packed", matrix, quantization }, {});
  const exact = dequantize(matrix, quantization, "float32");
  const expected = matmul(astype(x, "float32"), swapAxes(exact, 0, 1));
  expectNear(found, expected, 1);
}

/** Of products of a cluster whose groups copy their sums to each other. */
const denseMutations: Mutations = {
  "rows read too early": ["«  AWAIT_INPUTS;\n→»", early("reads x")],
  "no barrier after a wait": [
    "fence_proxy_async();\n«    BARRIER;\n→»    const unsigned stage",
    NO_BARRIER,
  ],
  "a copy into a stage being multiplied": ["STAGES - «2→1»;\n  constexpr int MATRIX", IS_COPIED],
  "sums copied without a fence": [
    "if (SHARES > 1) {\n«    fence_proxy_async();\n→»",
    /which lane \d+ has written and not fenced/,
  ],
  "sums copied before all warps wrote them": [
    "«  BARRIER;\n→»  if (SHARES > 1) {\n    if (thread_index < SHARES",
    /which nobody has written|a race/,
  ],
  "sums of others that are not waited for": [
    "«    barrier_wait(barrier, 0);\n→»",
    /where a copy of lane \d+ has not been waited for|which nobody has written/,
  ],
  "a group that exits too early": ["exit.\n«  if (SHARES > 1) cluster_wait();→»", /which ends/],
  "another group's sums in place of its own": [
    "«(s == share ? stages : received)→received»",
    /which nobody has written/,
  ],
};

/** 50 rows with a dense matrix, by groups of four that split more steps than they have stages. */
function checkDense(make: MakeKernel): void {
  using _ = new Scope();
  const [x, weight] = [random(1, 50, 4096), random(2, 64, 4096)];
  using products = freed(new Products(hopper, make));
  const found = products.product(x, { kind: "dense", weight }, {});
  const expected = matmul(astype(x, "float32"), swapAxes(astype(weight, "float32"), 0, 1));
  expectNear(found, expected, 2);
}

/** Of products of prompts, whose groups copy to each other what they multiply. */
const IS_STORED = /what lane \d+ was storing was written to/;
const promptMutations: Mutations = {
  "inputs read too early": ["«  AWAIT_INPUTS;\n→»", early("writes maps")],
  "descriptors and barriers used before they are initialized": [
    "lane);\n  }«\n  cluster_barrier();→»",
    /reads byte \d+ of maps, which nobody has written|that was never made/,
  ],
  "a stage refilled once half of its warps released it": [
    "CLUSTER_CTAS * «WARPS→WARPS / 2»);",
    NOT_WAITED_FOR,
  ],
  "a stage refilled before it is released": [
    "if (step >= «→2 * »STAGES) barrier_wait",
    /arrives at a barrier where all have arrived/,
  ],
  "a stage released while multiplied": ["«          wgmma_wait<1>();\n→»", NOT_WAITED_FOR],
  "steps multiplied before they arrived": [
    "«        barrier_wait(full + stage * 8, step / STAGES % 2);\n→»",
    NOT_WAITED_FOR,
  ],
  "a share of the columns that nobody copies": [
    "copy_columns(«OWN + rank * SHARE→OWN», ",
    /copies to byte \d+ of another group's memory, which that has used, or still does/,
  ],
  "sums of the tile before": "«s > 0 || k > 0→true», x",
  "halves of a tile that are the same half": "past % «2→1» * SHARE",
  "half a tile that gates itself": "tile.«column + rank * SECOND→column»",
  "half a tile that waits for a whole tile's columns": [
    "«tile.is_half ? HALF_STAGE : →»STAGE",
    WAITS_FOREVER,
  ],
  "a tile left over although clusters are free for its halves":
    "whole = all_tiles - halved, own_tiles = whole + «halved * 2→halved»;",
  "gate and up exchanged":
    "{sums[«0], sums[1]};\n#ifndef PREPARES\n            gate_pair(pair, sums + SUMS / 2→SUMS / 2], sums[SUMS / 2 + 1]};\n#ifndef PREPARES\n            gate_pair(pair, sums», x);",
  "a panel stored before all lanes wrote it": [
    "fence_proxy_async();«\n        WARP_BARRIER;→»",
    /a race: lane \d+ reads byte \d+ of the dynamic shared memory, which lane \d+ has written/,
  ],
  "an unfenced panel": ["«        fence_proxy_async();\n→»", UNFENCED],
  "a panel overwritten while it is stored": ["is_copied ? tensor_stores_wait<«1→2»>()", IS_STORED],
  "a panel overwritten by other lanes while it is stored": [
    "tensor_stores_wait<0>();«\n        WARP_BARRIER;→»",
    IS_STORED,
  ],
  "stores that are never waited for": [
    "«    if (lane == 0) tensor_stores_wait<0>();\n→»",
    /lane \d+ never waited for its stores/,
  ],
  "a group that exits too early": [
    "at its barriers.\n«  cluster_barrier();→»",
    /lane \d+ arrives at group \d+ of its cluster, which ends/,
  ],
};

/** Of those whose heads go on into attention. */
const headMutations: Mutations = {
  "a panel overwritten while the previous tile's is stored": [
    "«is_copied ? tensor_stores_wait<1>() : tensor_stores_wait<0→tensor_stores_wait<1»>();",
    UNFENCED,
  ],
  "keys read before all lanes wrote them": [
    "lane % 8 * 8;«\n          WARP_BARRIER;→»",
    /a race: lane \d+ (reads|writes) byte \d+ of the dynamic shared memory/,
  ],
  "keys of rows past the end": [
    "«if (token >= rows) break;→»",
    /reads 4 bytes at byte \d+ of places, which has \d+/,
  ],
  "values in the place of keys": "out_head >= HEADS + KV_HEADS ? «values : keys→keys : values»",
  "the positions of one row for all": "find_angle(float(positions[«r→0»])",
  "values that are rotated": "is_rotated = «first + half < HEADS + KV_HEADS→true»;",
  "angles without range reduction": "«fmaf(turns, -6.28125f, angle)→angle»",
  "queries left out where a sequence ends with its tile":
    "places[3 * «next_row→(next_row - 1)» + 2]",
  "queries of the last sequence left out": "next_row «>= rows ||→< rows &&» ",
};

/** 140 rows with gates, by two clusters of two groups: each has a tile and half of one, of more steps than stages. */
function checkPrompt(make: MakeKernel): void {
  using _ = new Scope();
  const [x, weight] = [random(1, 140, 320), random(2, 768, 320)];
  using prompts = freed(new PromptProducts(hopper, make));
  const found = prompts.gated({ x, weight }, 4);
  const exact = matmul(astype(x, "float32"), swapAxes(astype(weight, "float32"), 0, 1));
  const [gate, up] = split(exact, 2);
  const expected = multiply(multiply(gate!, sigmoid(gate!)), up!);
  expectNear(found, expected, 0.02 * largest(expected));
}

/** Of one token's product, whose weights are on their way while it computes. */
const streamMutations: Mutations = {
  "weights without a wait": [
    "«    barrier_wait(arrived(round), round / SLOTS % 2);\n→»",
    /reads byte 0 of places, which lane \d+ has written with no barrier/,
  ],
  "weights with the previous round's wait": [
    "    barrier_wait(arrived(round), «round / SLOTS % 2→0»);\n",
    /where a copy of lane \d+ has not been waited for/,
  ],
  "a slot refilled while it is read": [
    "«if (round >= SLOTS) barrier_wait(arrived(round) + 8, (round / SLOTS - 1) % 2);→»",
    /a race|has not been waited for|all have arrived/,
  ],
  "a slot that is never released": [
    "«if (lane == 0) barrier_arrive(arrived(round) + 8);→»",
    WAITS_FOREVER,
  ],
  "results of other warps read too early": [
    "«    sync_warps();\n→»    float all",
    /a race|which nobody has written/,
  ],
  "the token's numbers read too early": ["«  AWAIT_INPUTS;\n→»  #pragma", early("reads x")],
  "a claim counter that is not reset for the next launch":
    "«if (place == ALL + GROUPS - 1) *next = 0;→»",
  "tiles that two groups claim": [
    "«atomic_add(next, 1→(atomic_add(next, 1), 0»)",
    /of made, which lane \d+ has written with no barrier between them/,
  ],
  "claimed tiles in the wrong place": [
    "kept_places[kept] = «place→cta_x + round * GROUPS»;",
    /of made, which has 512/,
  ],
  "steps of odd rows swapped": "is_second = «of_pair ^ swapped→of_pair»",
  "digits of another span": "«column / SPANS * 4→0»",
  "an offset that is not removed": "«j % 2 ? 64 : →»1024",
};

/** A token with two matrices in 4 bits, twice, by two groups that claim the tiles behind their slots. */
function checkStream(make: MakeKernel): void {
  using _ = new Scope();
  const quantization = { mode: "affine", groupSize: 64, bits: 4 } as const;
  const [x, weight] = [random(1, 1, 2048), random(2, 2048)];
  const matrix = quantize(random(3, 512, 2048), quantization);
  using products = freed(new Products({ ...hopper, multiprocessors: 2 }, make));
  const fused = { norm: { weight, eps: 1e-6 }, isGated: true };
  const packed = { kind: "packed", matrix, quantization } as const;
  products.product(x, packed, fused).evaluate();
  const found = products.product(x, packed, fused);
  const exact = dequantize(matrix, quantization, "float32");
  const normed = rmsNorm(astype(x, "float32"), astype(weight, "float32"), 1e-6);
  const [gate, up] = split(matmul(normed, swapAxes(exact, 0, 1)), 2);
  const expected = multiply(multiply(gate!, sigmoid(gate!)), up!);
  expectNear(found, expected, 0.01 * largest(expected));
}

const normMutations: Mutations = {
  "rows read too early": ["«  AWAIT_INPUTS;\n→»", early("reads residual")],
  "no barrier before the squares of all warps are added": [
    "«  BARRIER;\n→»",
    /lane \d+ reads byte \d+ of squares, which nobody has written|a race/,
  ],
  "squares that are left out": "for (int mask = «16→8»; mask > 0; mask /= 2) square +=",
  "packs past the row": [
    "«if (at < PACKS) →»{\n      factor",
    /lane \d+ reads 16 bytes at byte \d+ of weight, which has/,
  ],
};

/** Of 2 rows that leave threads of their group without a pack. */
function checkNorm(make: MakeKernel): void {
  using _ = new Scope();
  const [x, weight] = [random(1, 2, 1032), random(2, 1032)];
  using norms = freed(new SumNorms(make));
  expectNear(norms.norm(x, weight, 1e-5)!, rmsNorm(x, weight, 1e-5), 0.05);
}

const lookupMutations: Mutations = {
  "tokens read too early": ["«  AWAIT_INPUTS;\n→»", early("reads tokens")],
  "a row past the last": [
    "«token < ROWS ? token : ROWS - 1→token»",
    /lane \d+ reads 16 bytes at byte \d+ of matrix, which has/,
  ],
  "the row of another token of the group": "from[rows[«i→0»] * PACKS",
  "packs past the row": [
    "at < «PACKS→PACKS + THREADS»;",
    /lane \d+ reads 16 bytes at byte \d+ of matrix, which has|of found, which/,
  ],
};

/** Of a group's tokens one after the other, the last of which has no row. */
function checkLookup(make: MakeKernel): void {
  using _ = new Scope();
  const matrix = astype(normal(key(1), [10, 72]), "bfloat16");
  const tokens = Uint32Array.from({ length: 1024 }, (_, i) => (i * 7) % 10);
  using lookups = freed(new Lookups(make));
  const found = lookups.rows(matrix, array(tokens.with(1023, 10)))!;
  expectNear(found, take(matrix, array(tokens.with(1023, 9))), 1e-9);
}

const onCpu = describe.skipIf(backend() !== "cpu");

/** Each of these in the kernel makes the check throw. */
function testMutations(
  kernel: string,
  mutations: Mutations,
  check: (make: MakeKernel) => void,
  make?: MakeKernel,
): void {
  test.each(Object.entries(mutations))(
    "%s",
    (_, mutation) => {
      const [edit, found] = typeof mutation === "string" ? [mutation, WRONG] : mutation;
      const [from, to] = ["$1", "$2"].map((side) => edit.replace(/«(.*)→(.*)»/s, side));
      expect(() => check(mutatedKernel(kernel, from!, to!, make))).toThrow(found);
    },
    60_000,
  );
}

/** A check that finds nothing in the kernel as it is, and each of these in it. */
function expectNoticed(
  of: string,
  kernel: string,
  mutations: Mutations,
  check: (make: MakeKernel) => void,
): void {
  onCpu(`in an emulated CUDA kernel ${of} the tests notice`, () => {
    test("nothing where nothing is wrong", () => {
      const same = mutatedKernel(kernel, "\n  AWAIT_INPUTS;\n", "\n  AWAIT_INPUTS; \n");
      expect(() => check(same)).not.toThrow();
    }, 60_000);
    testMutations(kernel, mutations, check);
  });
}

onCpu("in an emulated Metal kernel the tests notice", () => {
  for (const [kernel, edits] of Object.entries(mutations)) {
    testMutations(kernel, edits, (make) => checkAttention(attention, { emulated: "metal", make }));
  }
});

onCpu("in an emulated CUDA kernel by clusters the tests notice", () => {
  testMutations("decode_cluster_4", clusterAttentionMutations, (make) => {
    const by = { emulated: "cuda", make, hopper: { groups: 132 } } as const;
    checkAttention({ ...attention, dtype: "bfloat16", splits: 4 }, by);
  });
});

onCpu("in an emulated CUDA kernel with copies the tests notice", () => {
  testMutations("scan_tokens_49152", copyMutations, (make) => {
    const device = openDevice("cuda", { architecture: "sm_90" }, make);
    const check = deviceChecks(device).find(({ name }) => /^scan of tokens.*bf/.test(name))!;
    outcomeOf(check, device);
    device.free();
  });
});

onCpu("in an emulated CUDA kernel with products of warpgroups the tests notice", () => {
  const shape = { headDim: 128, kvHeads: 1, headsPerKv: 1, dtype: "bfloat16" } as const;
  const check = (make: MakeKernel) => checkChunks({ ...shape, hopper: { groups: 2 } }, make);
  testMutations("warpgroup_chunks", productMutations, check);
  testMutations("warpgroup_chunks", loadingMutations, check, orderedKernel);
  test("nothing where lanes run in their order and there is no fault", () => {
    check(orderedKernel);
  }, 60_000);
});

expectNoticed("of a norm", "norm", normMutations, checkNorm);
expectNoticed("of a lookup of rows", "lookup", lookupMutations, checkLookup);
expectNoticed("that streams weights", "streamed_vector_139264", streamMutations, checkStream);
expectNoticed("of a cluster", "warpgroup_product_54272", clusterMutations, checkCluster);
expectNoticed("that copies sums", "dense_product_198664", denseMutations, checkDense);
expectNoticed("that copies operands", "prompt_product", promptMutations, checkPrompt);
expectNoticed("whose heads go on into attention", "prompt_heads", headMutations, (make) => {
  const sizes = { rows: 520, inputs: 128, heads: 2, kvHeads: 1, groups: 2, begins: [256] };
  checkHeads({ ...sizes, dtype: "bfloat16", isRotated: true }, make);
});

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
