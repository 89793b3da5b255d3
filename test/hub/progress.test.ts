import { describe, expect, test } from "bun:test";
import { formatBytes } from "../../src/hub/bytes.ts";
import { Progress, progressLine, RateMeter } from "../../src/hub/progress.ts";

test("bytes are said in three digits or so", () => {
  const said = [0, 999, 1000, 1234, 99_949, 99_951, 999_499, 999_500, 4.7e9, 2 ** 62];
  expect(said.map(formatBytes)).toEqual([
    "0 B",
    "999 B",
    "1.0 kB",
    "1.2 kB",
    "99.9 kB",
    "100 kB",
    "999 kB",
    "1.0 MB",
    "4.7 GB",
    "4.6 EB",
  ]);
});

test("the line has percent, bytes, rate and the time left", () => {
  expect(progressLine(5e8, 2e9, 1e7)).toBe(" 25%  500 MB of 2.0 GB  10.0 MB/s  2 min 30 s left");
  expect(progressLine(0, 4e10, 1e6)).toEndWith("11 h 6 min left");
  expect(progressLine(0, 100)).toBe("  0%  0 B of 100 B");
  expect(progressLine(100, 100, 50)).toBe("100%  100 B of 100 B  50 B/s");
  expect(progressLine(0, 0)).toBe("100%  0 B of 0 B");
  expect(progressLine(1, 100, 0)).toBe("  1%  1 B of 100 B  0 B/s");
});

test("the rate is that of the last seconds, not of what was here before", () => {
  const rate = new RateMeter();
  rate.add(1_000_000, 0);
  expect(rate.bytesPerSecond).toBeUndefined();
  for (let second = 1; second <= 20; second++) rate.add(1_000_000 + second * 500, second * 1000);
  expect(rate.bytesPerSecond).toBe(500);
  for (let second = 21; second <= 30; second++) rate.add(1_010_000, second * 1000);
  expect(rate.bytesPerSecond).toBe(0);
});

function recorded(isTTY: boolean, columns?: number) {
  const clock = { ms: 0 };
  const texts: string[] = [];
  const output = { isTTY, columns, write: (text: string) => texts.push(text) };
  return { progress: new Progress(output, () => clock.ms), clock, texts };
}

describe("on a terminal", () => {
  test("one line is drawn over and over, ten times a second at most", () => {
    const { progress, clock, texts } = recorded(true, 100);
    for (clock.ms = 0; clock.ms <= 1000; clock.ms += 10) progress.update(clock.ms, 2000);
    progress.finish(2000, 2000);
    expect(texts).toHaveLength(13);
    const drawn = texts.slice(0, -1);
    expect(drawn.every((text) => text.startsWith("\r") && text.endsWith("\x1b[K"))).toBe(true);
    expect(drawn[10]).toContain(`[${"#".repeat(12)}${"-".repeat(12)}]   50%`);
    expect(drawn[11]).toContain("100%");
    expect(texts.join("").split("\n")).toHaveLength(2);
  });

  test("the line is never longer than the terminal is wide", () => {
    const { progress, texts } = recorded(true, 20);
    progress.update(1e9, 2e9);
    expect(texts[0]!.replace("\r", "").replace("\x1b[K", "").length).toBeLessThan(20);
  });

  test("a message stands above the bar", () => {
    const { progress, texts } = recorded(true);
    progress.update(1, 2);
    progress.say("trying again");
    progress.update(1, 2);
    expect(texts[1]).toBe("\r\x1b[Ktrying again\n");
    expect(texts).toHaveLength(3);
  });
});

test("elsewhere there is a line now and then, and one at the end", () => {
  const { progress, clock, texts } = recorded(false);
  for (clock.ms = 0; clock.ms < 60_000; clock.ms += 100) progress.update(clock.ms, 60_000);
  progress.finish(60_000, 60_000);
  expect(texts.map((text) => text.slice(0, 4))).toEqual(["  0%", " 25%", " 50%", " 75%", "100%"]);
  expect(texts.every((text) => /^[\x20-\x7e]*\n$/.test(text))).toBe(true);
});
