import { expect, test } from "bun:test";
import {
  activityText,
  logActivity,
  ProgressLine,
  showActivity,
} from "../../../src/cli/terminal/progress.ts";
import { table } from "../../../src/cli/terminal/table.ts";
import type { EngineActivity } from "../../../src/engine/protocol.ts";
import type { Logger } from "../../../src/log.ts";

function output(isTTY: boolean) {
  const written: string[] = [];
  return { isTTY, columns: 40, written, write: (text: string) => written.push(text) };
}

/** Shows so many of 100 steps, with this much time between two. */
function shown(isTTY: boolean, json: boolean, stepMs: number): string[] {
  const to = output(isTTY);
  let now = 0;
  const line = new ProgressLine({ json, output: to, nowMs: () => now });
  for (let done = 0; done <= 100; done++, now += stepMs) {
    line.show({ event: "lines", done, total: 100 }, `${done} of 100`);
  }
  line.clear();
  return to.written;
}

test("on a terminal one line is redrawn, not too often, and is gone at the end", () => {
  const written = shown(true, false, 50);
  expect(written).toHaveLength(51 + 1);
  expect(written.slice(0, 2)).toEqual(["\r0 of 100\x1b[K", "\r2 of 100\x1b[K"]);
  expect(written.at(-1)).toBe("\r\x1b[K");
  // Whoever looks at a terminal is no program.
  expect(shown(true, true, 50)).toEqual(written);
});

test("a line and a column are as wide as a terminal shows them", () => {
  const to = output(true);
  new ProgressLine({ output: to }).show({ event: "pull", done: 0 }, "模型".repeat(20));
  expect(to.written).toEqual([`\r${"模型".repeat(10)}\x1b[K`]);
  expect(table(["model", "bytes"], [["模型", "7"]])).toBe("model  bytes\n模型   7");
});

test("elsewhere there is a line now and then, and none where it takes no time", () => {
  expect(shown(false, false, 50)).toEqual([]);
  expect(shown(false, false, 250)).toEqual(["40 of 100\n", "80 of 100\n"]);
});

test("for programs there is an object a line: the first, one a second, and the last", () => {
  const events = shown(false, true, 50).map((line) => JSON.parse(line));
  expect(events.map(({ done }) => done)).toEqual([0, 20, 40, 60, 80, 100]);
  expect(events[1]).toEqual({ event: "lines", done: 20, total: 100 });
});

const activities: EngineActivity[] = [
  { kind: "load", model: "tiny", done: 43, total: 100 },
  { kind: "warm_up", model: "tiny", done: 1, total: 4 },
  { kind: "compile", kernel: "decode", done: 7 },
];

test("what an engine is at is told, and gone once it is done", () => {
  expect(activities.map(activityText)).toEqual([
    "loading tiny 43%",
    "warming up tiny 25%",
    "compiling kernels, once for this GPU: 7",
  ]);
  const terminal = output(true);
  const show = showActivity({ output: terminal });
  for (const activity of activities) show(activity);
  show(undefined);
  expect(terminal.written).toEqual([
    "\rloading tiny 43%\x1b[K",
    "\rwarming up tiny 25%\x1b[K",
    "\rcompiling kernels, once for this GPU: 7\x1b[K",
    "\r\x1b[K",
  ]);
  const programs = output(false);
  const report = showActivity({ output: programs, json: true });
  for (const activity of activities) report(activity);
  const told = programs.written.map((line) => JSON.parse(line).event);
  expect(told).toEqual(["load", "warm_up", "compile"]);
});

test("a server's log for programs has a line once it takes a while", () => {
  const lines: unknown[] = [];
  let now = 0;
  const log = { info: (...line: unknown[]) => lines.push(line) } as unknown as Logger;
  const report = logActivity(log, () => now);
  for (; now <= 25_000; now += 1000)
    report({ kind: "compile", kernel: "decode", done: now / 1000 });
  report(undefined);
  report(activities[0]);
  expect(lines).toEqual(
    [10, 20].map((done) => [
      { kind: "compile", kernel: "decode", done },
      `compiling kernels, once for this GPU: ${done}`,
    ]),
  );
});
