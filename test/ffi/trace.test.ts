import { expect, test } from "bun:test";
import { traced, traceReport } from "../../ffi/trace.ts";

test("a trace counts the calls and times them, the most expensive first", () => {
  const { slow_symbol, quick_symbol } = traced({
    quick_symbol: (a: number, b: number) => a + b,
    slow_symbol: (ms: number) => Bun.sleepSync(ms),
    silent_symbol: () => {},
  });
  expect(quick_symbol(2, 3)).toBe(5);
  for (let i = 0; i < 19; i++) slow_symbol(1);
  slow_symbol(40);

  const [slow, quick, ...others] = traceReport();
  expect(others).toEqual([]);
  expect(quick).toMatchObject({ symbol: "quick_symbol", count: 1 });
  expect(slow).toMatchObject({ symbol: "slow_symbol", count: 20 });
  expect(slow!.totalMs).toBeGreaterThan(58);
  // A sleep lasts as long as asked or longer, never less; a bucket is at most 19% wide.
  expect(slow!.p50Us).toBeGreaterThan(1000);
  expect(slow!.p50Us).toBeLessThan(40_000);
  expect(slow!.p99Us).toBeGreaterThan(40_000);
});

test("a call that throws is traced and still throws", () => {
  const { failing_symbol } = traced({
    failing_symbol: () => {
      throw new Error("failed");
    },
  });
  expect(failing_symbol).toThrow("failed");
  expect(traceReport().find(({ symbol }) => symbol === "failing_symbol")?.count).toBe(1);
});
