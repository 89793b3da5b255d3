import { expect, test } from "bun:test";
import { type Comparison, type Measured, page, picture } from "../../scripts/bench/compare/page.ts";
import { resultsOf } from "../../src/bench/results.ts";

/** `speeds` of each level in tokens a second, once a round. */
function measured(name: string, speeds: Record<number, number[]>): Measured {
  const times = { startMs: 0, arrivalsMs: [10, 30], endMs: 30 };
  const samples = [{ ...times, promptTokens: 3, cachedTokens: 0, tokens: 2 }];
  const passes = Object.entries(speeds).flatMap(([level, rounds]) =>
    rounds.map((speed) => {
      return { mode: "sweep", concurrency: Number(level), samples, ms: 2000 / speed };
    }),
  );
  return { name, version: "1.0", weights: "Q4_1", rssBytes: 2e9, results: resultsOf(passes) };
}

const comparison: Comparison = {
  date: "2026-11-15T10:00:00.000Z",
  command: "npm run -s bench:compare -- --rounds 3",
  machine: { cpu: "A CPU", cores: 2, memory_bytes: 25e9, os: "linux 6 x64" },
  bun: "1.4.4",
  model: "SmolLM2",
  threads: 2,
  requests: 8,
  maxTokens: 32,
  rounds: 3,
  systems: [
    measured("mlx-serve", { 1: [40, 50, 30], 8: [200, 210, 190] }),
    measured("mlx-lm", { 1: [10, 11, 9], 8: [50, 60, 40] }),
  ],
};

test("the page has the median, the spread and how many times as fast", () => {
  const text = page(comparison);
  expect(text).toContain("| at once | mlx-serve | mlx-lm | mlx-serve / mlx-lm |");
  expect(text).toContain("| 1 | 40.0 (30.0 - 50.0) | 10.0 (9.0 - 11.0) | 4.00x |");
  expect(text).toContain("| 8 | 200.0 (190.0 - 210.0) | 50.0 (40.0 - 60.0) | 4.00x |");
});

test("the page tells date, machine, versions and command", () => {
  const text = page(comparison);
  expect(text).toContain("2026-11-15 by `npm run -s bench:compare -- --rounds 3`");
  expect(text).toContain("| machine | A CPU, 2 cores, 25.0 GB, linux 6 x64 |");
  expect(text).toContain("| mlx-lm | 1.0; weights: Q4_1 |");
  expect(text).toContain("(benchmarks.svg)");
});

test("the picture has a line for each system", () => {
  const svg = picture(comparison);
  expect(svg.match(/<polyline/g)).toHaveLength(2);
  expect(svg).toContain(">mlx-serve  200<");
  expect(svg).toContain(">mlx-lm  50<");
});
