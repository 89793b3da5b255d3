import { expect, test } from "bun:test";
import { type Pass, percentile, resultsOf } from "../../src/bench/results.ts";
import type { Sample } from "../../src/bench/target.ts";

/** A request from 0 on, with a piece at each of these times. */
function sample(arrivalsMs: number[], tokens = arrivalsMs.length): Sample {
  const endMs = arrivalsMs.at(-1)!;
  return { startMs: 0, arrivalsMs, endMs, promptTokens: 10, cachedTokens: 4, tokens };
}

function pass(ms: number, samples: Sample[], mode = "batched", concurrency = 2): Pass {
  return { mode, concurrency, samples, ms };
}

test("a percentile between two values is in proportion", () => {
  expect(percentile([4, 1, 3, 2], 50)).toBe(2.5);
  expect(percentile([10, 20], 90)).toBe(19);
  expect(percentile([7], 99)).toBe(7);
  expect(percentile([], 50)).toBe(0);
});

test("a result is the median pass, with the spread of all and the latencies of every request", () => {
  const two = [sample([10, 20]), sample([30, 40])];
  const passes = [pass(400, two), pass(100, two), pass(200, two)];
  expect(resultsOf(passes)).toEqual([
    {
      mode: "batched",
      concurrency: 2,
      num_requests: 2,
      repeat: 3,
      total_tokens: 4,
      total_time_seconds: 0.2,
      tokens_per_second: 20,
      tokens_per_second_min: 10,
      tokens_per_second_max: 40,
      requests_per_second: 10,
      prompt_tokens: 20,
      cached_tokens: 8,
      avg_latency_ms: 30,
      p50_latency_ms: 30,
      p90_latency_ms: 40,
      p99_latency_ms: 40,
      avg_ttft_ms: 20,
      p50_ttft_ms: 20,
      p90_ttft_ms: 30,
      p99_ttft_ms: 30,
      avg_inter_token_ms: 10,
      p50_inter_token_ms: 10,
      p90_inter_token_ms: 10,
      p99_inter_token_ms: 10,
    },
  ]);
});

test("of an even number of passes the slower of the middle ones counts", () => {
  const passes = [100, 200, 400, 800].map((ms) => pass(ms, [sample([50])]));
  expect(resultsOf(passes)[0]!.total_time_seconds).toBe(0.4);
});

test("every mode and level has a result of its own, in order", () => {
  const one = [sample([1])];
  const passes = [pass(1, one, "sweep", 8), pass(1, one, "sweep", 1), pass(1, one, "sweep", 8)];
  const results = resultsOf(passes).map(({ concurrency, repeat }) => [concurrency, repeat]);
  expect(results).toEqual([
    [8, 2],
    [1, 1],
  ]);
});

test("the mean between tokens is told by the tokens where a piece has several", () => {
  const [result] = resultsOf([pass(100, [sample([10, 30, 50], 5)])]);
  expect(result).toMatchObject({ avg_inter_token_ms: 10, p50_inter_token_ms: 20 });
});

test("an answer of one token has no time between tokens", () => {
  const [result] = resultsOf([pass(100, [sample([10])])]);
  expect(result).toMatchObject({ avg_inter_token_ms: 0, p99_inter_token_ms: 0, avg_ttft_ms: 10 });
});

test("goodput counts the requests that keep every limit", () => {
  const samples = [sample([10, 20, 30]), sample([60, 70, 80]), sample([10, 60, 110])];
  const goodput = (slo: { ttftMs?: number; itlMs?: number }) =>
    resultsOf([pass(1000, samples), pass(1000, samples)], slo)[0]!.goodput_requests_per_second;
  expect(goodput({})).toBeUndefined();
  expect(goodput({ ttftMs: 50 })).toBe(2);
  expect(goodput({ itlMs: 10 })).toBe(2);
  expect(goodput({ ttftMs: 50, itlMs: 10 })).toBe(1);
  expect(goodput({ ttftMs: 5 })).toBe(0);
});
