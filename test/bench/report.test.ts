import { expect, test } from "bun:test";
import packageJson from "../../package.json" with { type: "json" };
import { reportOf, tables } from "../../src/bench/report.ts";
import { type Result, resultsOf } from "../../src/bench/results.ts";

function result(more: Partial<Result> = {}): Result {
  const times = { startMs: 0, arrivalsMs: [10, 30], endMs: 30 };
  const samples = [{ ...times, promptTokens: 3, cachedTokens: 0, tokens: 2 }];
  const [own] = resultsOf([{ mode: "single", concurrency: 1, samples, ms: 40 }]);
  return { ...own!, ...more };
}

test("a report says when, where, with what and by which command", () => {
  const about = { kind: "engine", model: "tiny", backend: "cpu", device: "a CPU" } as const;
  const report = reportOf({ ...about, mlxVersion: "0.32.2" }, ["sweep"], { requests: 8 }, [
    result(),
  ]);
  expect(report).toEqual({
    date: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
    command: "mlx-serve bench sweep",
    machine: {
      cpu: expect.any(String),
      cores: expect.any(Number),
      memory_bytes: expect.any(Number),
      os: expect.stringContaining(process.platform),
      backend: "cpu",
      device: "a CPU",
    },
    versions: { mlx_serve: packageJson.version, bun: Bun.version, mlx: "0.32.2" },
    target: { kind: "engine", model: "tiny" },
    settings: { requests: 8 },
    results: [result()],
  });
});

test("the command can be run again, and has no key in it", () => {
  const command = (...args: string[]) =>
    reportOf({ kind: "server", model: "m", url: "http://h" }, args, {}, []).command;
  expect(command("--api-key", "sk-secret", "--json", "it's here")).toBe(
    "mlx-serve bench --api-key ... --json 'it'\\''s here'",
  );
  expect(command("--api-key=sk-secret", "single")).toBe("mlx-serve bench --api-key=... single");
});

test("the tables have columns for what is there", () => {
  const plain = tables([result()]);
  expect(plain).toBe(`MODE    AT ONCE  REQUESTS  TOKENS  SECONDS  TOKENS/S   MIN   MAX
single        1         1       2     0.04      50.0  50.0  50.0

MODE    AT ONCE  MILLISECONDS    MEAN   P50   P90   P99
single        1  first token     10.0  10.0  10.0  10.0
single        1  between tokens  20.0  20.0  20.0  20.0
single        1  whole answer    30.0  30.0  30.0  30.0`);
  const full = tables([
    result(),
    result({ speedup: 3.4, goodput_requests_per_second: 0, active_bytes: 1.6e9, rss_bytes: 2e9 }),
  ]);
  const [head, first, second] = full.split("\n");
  expect(head).toEndWith("  MAX  SPEEDUP  GOOD/S     MLX     RSS");
  expect(first).toEndWith("  50.0        -       -       -       -");
  expect(second).toEndWith(" 50.0     3.40    0.00  1.6 GB  2.0 GB");
});
