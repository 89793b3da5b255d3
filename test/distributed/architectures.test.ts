// Models that are divided among ranks give the tokens that they give alone. `npm run -s ranks` runs every architecture.
import { expect, test } from "bun:test";
import type { Parallel } from "../../src/model/weights/stages.ts";
import { runOnRanks } from "../support/rank-processes.ts";
import type { RankResult } from "../support/rank-program.ts";

const subjects = new Map<number, `${Parallel}:${string}`[]>();
const runs = new Map<number, Promise<RankResult[]>>();

/** Results of these models: all tests with `size` ranks share one start of the processes. */
function onRanks(size: number, names: readonly string[], parallel: Parallel = "tensor") {
  const all = subjects.getOrInsertComputed(size, () => []);
  all.push(...names.map((name) => `${parallel}:${name}` as const));
  return async () => {
    const results = await runs.getOrInsertComputed(size, () => runOnRanks(size, all, 90_000));
    const own = results.filter((each) => each.parallel === parallel && names.includes(each.name));
    expect(own).toHaveLength(size * names.length);
    return own;
  };
}

const halves = onRanks(2, [
  // Attention and MLP, quantized too; experts; latents; recurrent layers beside attention; norms over all heads.
  ...["llama", "llama-q4", "qwen3_moe", "gpt_oss", "deepseek_v2", "qwen3_next", "olmo2"],
  // A mean over all of an MLP's width; a gate for each head; columns in another order than their inputs.
  ...["gemma3n", "iquestloopcoder", "gguf:qwen3_5"],
]);
test("two ranks, each with half of the weights, draw what one rank does", async () => {
  const results = await halves();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  expect(results.filter(({ preemptions, cachedTokens }) => !preemptions || !cachedTokens)).toEqual(
    [],
  );
  expect(results.every(({ inFlight }) => inFlight === 2)).toBe(true);
  const divided = ["llama", "qwen3_next", "gguf:qwen3_5"];
  const shares = results.filter(({ name }) => divided.includes(name)).map(({ share }) => share);
  expect(shares.every(({ kv }) => kv === 0.5)).toBe(true);
  expect(shares.every(({ weights }) => weights > 0.49 && weights < 0.52)).toBe(true);
}, 90_000);

const threeQueries = onRanks(3, ["llama", "deepseek_v2"]);
test("three ranks share two KV heads: one has all queries of the first", async () => {
  const results = await threeQueries();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  const shares = results.filter(({ name }) => name === "llama").map(({ share }) => share.kv);
  expect(shares).toEqual([0.5, 0.5, 0.5]);
  const weights = results.filter(({ name }) => name === "llama").map(({ share }) => share.weights);
  expect(weights.every((share) => share > 0.33 && share < 0.4)).toBe(true);
}, 90_000);

const halfStates = onRanks(2, [
  // Mamba 2: groups with their heads; some heads of one group, with a norm over those of both ranks.
  ...["nemotron_h", "falcon_h1", "granitemoehybrid-dense-q4"],
  ...["lfm2-q4", "kimi_linear", "bailing_hybrid", "jamba", "plamo2-q4", "rwkv7"],
  ...["recurrent_gemma", "gear"],
]);
test("two ranks, each with half of the recurrent layers and their states, draw what one rank does", async () => {
  const results = await halfStates();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  // Some have a group that both ranks have, or the token before.
  expect(results.filter(({ share }) => share.slots < 0.5 || share.slots > 0.53)).toEqual([]);
}, 90_000);

const mostSlots = {
  "granitemoehybrid-dense": "0.40", // 3 of 8 heads, and the group of all
  lfm2: "0.34", // 22 of 64 channels
  kimi_linear: "0.50", // 2 of 4 heads
  mamba: "0.33",
  recurrent_gemma: "0.50",
};
const unevenStates = onRanks(3, Object.keys(mostSlots));
test("three ranks have channels and heads of recurrent layers that do not divide evenly", async () => {
  const results = await unevenStates();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  const byName = Object.groupBy(results, ({ name }) => name);
  const shares = Object.entries(byName).map(([name, own]) => [
    name,
    Math.max(...own!.map(({ share }) => share.slots)).toFixed(2),
  ]);
  expect(Object.fromEntries(shares)).toEqual(mostSlots);
}, 90_000);

const fourStates = onRanks(4, ["nemotron_h", "bailing_hybrid", "qwen3_next"]);
test("four ranks have heads of one group or key head each, and a norm over those of two ranks", async () => {
  const results = await fourStates();
  expect(results.filter(({ isRight, share }) => !isRight || share.slots > 0.3)).toEqual([]);
}, 90_000);

// Windows that only one of the ranks has; latents and experts; recurrent layers.
const halfLayers = onRanks(2, ["llama", "llama-windows", "deepseek_v2", "qwen3_next"], "pipeline");
test("two ranks, each with half of the layers, draw what one rank does", async () => {
  const results = await halfLayers();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  expect(results.filter(({ preemptions, cachedTokens }) => !preemptions || !cachedTokens)).toEqual(
    [],
  );
  expect(results.every(({ inFlight }) => inFlight === 2)).toBe(true);
  const shares = results.filter(({ name }) => name === "llama").map(({ share }) => share.weights);
  expect(shares[0]! + shares[1]!).toBeCloseTo(1, 2);
}, 90_000);

// Keys and values of two windows, and inputs of layers; keys and values of the layer before, and of an earlier pass;
// the first layer's values; sums of earlier layers; the embedded tokens.
const handedOn = onRanks(
  3,
  ["gemma3n", "hunyuan", "iquestloopcoder", "rwkv7", "kimi_k3", "talkie"],
  "pipeline",
);
test("ranks hand on what layers take of earlier ones beside the hidden state", async () => {
  const results = await handedOn();
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
}, 90_000);

const deeper = onRanks(4, ["deepseek_v2"], "pipeline");
test("four ranks have some of the layers each of a model that got more of them", async () => {
  const results = await deeper();
  expect(results.map(({ isRight, layers }) => [isRight, layers])).toEqual(
    Array.from({ length: 4 }, () => [true, { own: 3, all: 5 }]),
  );
}, 90_000);

const sharedKv = onRanks(4, ["olmo2"]);
test("four ranks share two KV heads", async () => {
  const results = await sharedKv();
  expect(results.map(({ isRight, share }) => [isRight, share.kv])).toEqual(
    Array.from({ length: 4 }, () => [true, 0.5]),
  );
}, 90_000);
