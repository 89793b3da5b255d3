// Determines the limit of file descriptors of this process, and how many are left.
import { closeSync, openSync } from "node:fs";

/** File descriptors reserved for models, downloads and the like. */
const RESERVE = 64;

/** Returns the first reserved descriptor number: if the lowest free number has reached it, few are left. */
export function firstReserved(): number {
  const limit = descriptorLimit();
  return limit - Math.min(RESERVE, limit / 4);
}

/** Returns the process's limit of file descriptors; Infinity if unlimited or unknown. */
function descriptorLimit(): number {
  try {
    const { stdout } = Bun.spawnSync(["sh", "-c", "ulimit -n"]);
    return Number(stdout.toString()) || Number.POSITIVE_INFINITY;
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

/** Returns the number that the last of the next `count` descriptors would get; undefined if fewer are available. */
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
