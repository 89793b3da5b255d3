// Models that are divided among ranks give the tokens that they give alone. `npm run -s ranks` runs every architecture.
import { expect, test } from "bun:test";
import { runOnRanks } from "../support/rank-processes.ts";

test("two ranks, each with half of the weights, draw what one rank does", async () => {
  // Attention and MLP, quantized too; experts; latents; recurrent layers beside attention; norms over all heads.
  const names = ["llama", "llama-q4", "qwen3_moe", "gpt_oss", "deepseek_v2", "qwen3_next", "olmo2"];
  const results = await runOnRanks(2, names, 60_000);
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  expect(results).toHaveLength(2 * names.length);
  expect(results.filter(({ preemptions, cachedTokens }) => !preemptions || !cachedTokens)).toEqual(
    [],
  );
  const divided = ["llama", "qwen3_next"];
  const shares = results.filter(({ name }) => divided.includes(name)).map(({ share }) => share);
  expect(shares.every(({ kv }) => kv === 0.5)).toBe(true);
  expect(shares.every(({ weights }) => weights > 0.49 && weights < 0.52)).toBe(true);
}, 90_000);

test("three ranks have heads that do not divide evenly, or all of them", async () => {
  const results = await runOnRanks(3, ["llama", "deepseek_v2"], 60_000);
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  const shares = results.filter(({ name }) => name === "llama").map(({ share }) => share.kv);
  expect(shares).toEqual([1, 1, 1]);
}, 90_000);

test("two ranks, each with half of the layers, draw what one rank does", async () => {
  // Windows that only one of the ranks has; latents and experts; recurrent layers.
  const names = ["llama", "llama-windows", "deepseek_v2", "qwen3_next"];
  const results = await runOnRanks(2, names, 60_000, { parallel: "pipeline" });
  expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
  expect(results).toHaveLength(2 * names.length);
  const shares = results.filter(({ name }) => name === "llama").map(({ share }) => share.weights);
  expect(shares[0]! + shares[1]!).toBeCloseTo(1, 2);
}, 90_000);

test("four ranks share two KV heads", async () => {
  const results = await runOnRanks(4, ["olmo2"], 60_000);
  expect(results.map(({ isRight, share }) => [isRight, share.kv])).toEqual(
    Array.from({ length: 4 }, () => [true, 0.5]),
  );
}, 90_000);
