import { expect, test } from "bun:test";
import { type Priority, standing, WaitingQueue } from "../../src/schedule/queue.ts";

let order = 0;
const entry = (priority: Priority, seconds: number, name = "") => ({
  priority,
  arrivalMs: seconds * 1000,
  order: order++,
  name,
});

function drain<T extends ReturnType<typeof entry>>(entries: T[]): string[] {
  const queue = new WaitingQueue<T>();
  for (const each of entries) queue.add(each);
  const names: string[] = [];
  for (let first = queue.first(() => false); first; first = queue.first(() => false)) {
    names.push(first.name);
    queue.remove(first);
  }
  return names;
}

test("a request rises by a tenth of a level a second", () => {
  const request = entry("NORMAL", 100);
  expect(standing(request, 100_000)).toBe(1);
  expect(standing(request, 105_000)).toBe(1.5);
  expect(standing(request, 110_000)).toBe(2);
});

test("higher levels come first, and within a level whoever came first", () => {
  const entries = [
    entry("LOW", 0, "low 1"),
    entry("NORMAL", 1, "normal 1"),
    entry("HIGH", 2, "high 1"),
    entry("NORMAL", 1, "normal 2"),
    entry("HIGH", 2, "high 2"),
    entry("LOW", 0, "low 2"),
  ];
  expect(drain(entries)).toEqual(["high 1", "high 2", "normal 1", "normal 2", "low 1", "low 2"]);
});

test("who waits long enough passes who came later at a higher level", () => {
  const entries = [
    entry("HIGH", 19.9, "high, just in time"),
    entry("HIGH", 20.1, "high, too late"),
    entry("LOW", 0, "low"),
    entry("NORMAL", 10.1, "normal, too late"),
    entry("NORMAL", 9.9, "normal, just in time"),
  ];
  expect(drain(entries)).toEqual([
    "high, just in time",
    "normal, just in time",
    "low",
    "high, too late",
    "normal, too late",
  ]);
});

test("the order is that of the standing at any moment", () => {
  let seed = 99;
  const random = (n: number) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed % n;
  };
  const levels = ["LOW", "NORMAL", "HIGH"] as const;
  const queue = new WaitingQueue<ReturnType<typeof entry>>();
  for (let i = 0; i < 300; i++) queue.add(entry(levels[random(3)]!, random(60)));
  for (const now of [60_000, 1_000_000]) {
    const standings = Array.from(queue, (each) => standing(each, now));
    for (const [i, each] of standings.entries()) {
      if (i > 0) expect(each).toBeLessThanOrEqual(standings[i - 1]! + 1e-9);
    }
  }
});

test("removing says whether it was there", () => {
  const queue = new WaitingQueue<ReturnType<typeof entry>>();
  const request = entry("LOW", 0);
  expect(queue.remove(request)).toBe(false);
  queue.add(request);
  expect(queue.length).toBe(1);
  expect(queue.remove(request)).toBe(true);
  expect(queue.first(() => false)).toBeUndefined();
});
