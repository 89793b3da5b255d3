// How much memory some work takes.

/** Bytes that the process grows by. */
export function grownMemory(work: () => void): number {
  Bun.gc(true);
  const before = process.memoryUsage.rss();
  work();
  return process.memoryUsage.rss() - before;
}
