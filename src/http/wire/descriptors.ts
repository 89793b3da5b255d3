// File descriptors: the limit of this process, and whether they run short.
import { closeSync, openSync } from "node:fs";

/** Descriptors reserved for models, downloads and the like. */
const RESERVE = 64;

/** The lowest reserved number: the system always allocates the lowest free one. */
export function firstReserved(): number {
  const limit = descriptorLimit();
  return limit - Math.min(RESERVE, limit / 4);
}

/** Infinity if unlimited or unknown. */
function descriptorLimit(): number {
  try {
    const { stdout } = Bun.spawnSync(["sh", "-c", "ulimit -n"]);
    return Number(stdout.toString()) || Number.POSITIVE_INFINITY;
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

/** The number that the last of the next `count` descriptors would get; undefined if there are too few. */
export function nextNumber(count: number): number | undefined {
  const opened: number[] = [];
  try {
    while (opened.length < count) opened.push(openSync("/dev/null", "r"));
    return opened.at(-1);
  } catch {
    return undefined;
  } finally {
    for (const descriptor of opened) closeSync(descriptor);
  }
}
