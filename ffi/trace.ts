// Optionally traces the FFI: how often each symbol was called, and how long the calls took. Times are counted in
// buckets a quarter of an octave wide, so a percentile is accurate to 19%.

export type TraceRow = {
  symbol: string;
  count: number;
  totalMs: number;
  p50Us: number;
  p99Us: number;
};

type Histogram = { totalNs: number; buckets: Uint32Array };

const BUCKETS_PER_OCTAVE = 4;
const histograms = new Map<string, Histogram>();

/** Wraps the functions so that each call is timed. */
export function traced<T extends object>(functions: T): T {
  const wrapped: Record<string, unknown> = {};
  for (const [symbol, call] of Object.entries(functions)) {
    const histogram: Histogram = { totalNs: 0, buckets: new Uint32Array(40 * BUCKETS_PER_OCTAVE) };
    histograms.set(symbol, histogram);
    wrapped[symbol] = (...args: unknown[]) => {
      const start = Bun.nanoseconds();
      try {
        return call(...args);
      } finally {
        record(histogram, Bun.nanoseconds() - start);
      }
    };
  }
  return wrapped as T;
}

/** Lists the symbols called so far, the most expensive first. */
export function traceReport(): TraceRow[] {
  const rows: TraceRow[] = [];
  for (const [symbol, { totalNs, buckets }] of histograms) {
    const count = buckets.reduce((sum, n) => sum + n, 0);
    if (count === 0) continue;
    rows.push({
      symbol,
      count,
      totalMs: round(totalNs / 1e6),
      p50Us: round(percentile(buckets, count, 0.5) / 1e3),
      p99Us: round(percentile(buckets, count, 0.99) / 1e3),
    });
  }
  return rows.sort((a, b) => b.totalMs - a.totalMs);
}

function record(histogram: Histogram, ns: number): void {
  histogram.totalNs += ns;
  const bucket = Math.floor(Math.log2(Math.max(ns, 1)) * BUCKETS_PER_OCTAVE);
  const last = histogram.buckets.length - 1;
  histogram.buckets[Math.min(bucket, last)]! += 1;
}

/** Returns the upper edge, in nanoseconds, of the bucket that contains this percentile (0 to 1) of all calls. */
function percentile(buckets: Uint32Array, count: number, share: number): number {
  let left = Math.ceil(count * share);
  const bucket = buckets.findIndex((n) => {
    left -= n;
    return left <= 0;
  });
  return 2 ** ((bucket + 1) / BUCKETS_PER_OCTAVE);
}

function round(value: number): number {
  return Number(value.toPrecision(3));
}
