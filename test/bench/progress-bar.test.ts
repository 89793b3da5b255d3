import { expect, test } from "bun:test";
import { ProgressBar } from "../../src/bench/progress-bar.ts";

function output(isTTY: boolean, columns = 80) {
  const written: string[] = [];
  return { isTTY, columns, written, write: (text: string) => written.push(text) };
}

test("on a terminal the bar grows with every answer, and is gone at the end", () => {
  const terminal = output(true);
  const bar = new ProgressBar(terminal, 4, "sweep");
  bar.tick();
  for (let i = 0; i < 3; i++) bar.tick();
  bar.clear();
  const { written } = terminal;
  expect(written[1]).toBe("\r[######------------------]  sweep  1 of 4 requests\x1b[K");
  expect(written[4]).toBe("\r[########################]  sweep  4 of 4 requests\x1b[K");
  expect(written.at(-1)).toBe("\r\x1b[K");
});

test("a narrow terminal gets no second line", () => {
  const terminal = output(true, 30);
  new ProgressBar(terminal, 4, "sweep").tick();
  for (const text of terminal.written) expect(Bun.stripANSI(text)).toHaveLength(30);
});

test("elsewhere nothing is written", () => {
  const file = output(false);
  const bar = new ProgressBar(file, 1, "single");
  bar.tick();
  bar.clear();
  expect(file.written).toEqual([]);
});
