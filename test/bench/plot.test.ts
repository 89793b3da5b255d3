import { expect, test } from "bun:test";
import { barPlot, linePlot } from "../../src/bench/plot.ts";

/** Every element is closed, and in order. */
function expectWellFormed(svg: string): void {
  const open: string[] = [];
  for (const [, close, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
    if (self) continue;
    if (close) expect(open.pop()).toBe(name!);
    else open.push(name!);
  }
  expect(open).toEqual([]);
  expect(svg).not.toMatch(/NaN|undefined|Infinity/);
}

const line = (name: string, ys: number[]) => ({
  name,
  points: ys.map((y, i) => ({ x: 2 ** i, y, min: y - 1, max: y + 2 })),
});

test("a line plot names every line at its end, apart from the others", () => {
  const lines = [line("ours", [5, 90]), line("theirs", [4, 89]), line("others", [3, 88.5])];
  const svg = linePlot({ title: "Speed", note: "here", xLabel: "at once", lines });
  expectWellFormed(svg);
  const labels = [...svg.matchAll(/<text x="[\d.]+" y="([\d.]+)" class="name fill(\d)">([^<]*)</g)];
  expect(labels.map(([, , , text]) => text)).toEqual(["ours  90", "theirs  89", "others  88.5"]);
  const places = labels.map(([, y]) => Number(y));
  expect(places[1]! - places[0]!).toBeGreaterThanOrEqual(18);
  expect(places[2]! - places[1]!).toBeGreaterThanOrEqual(18);
});

test("the axis goes from 0 to a round number above everything", () => {
  const svg = linePlot({ title: "", note: "", xLabel: "", lines: [line("ours", [40, 231])] });
  const ticks = [...svg.matchAll(/text-anchor="end">([\d.]+)</g)].map(([, tick]) => Number(tick));
  expect(ticks).toEqual([0, 50, 100, 150, 200, 250]);
});

test("bars are as long as their values", () => {
  const bars = [
    { name: "single", y: 25 },
    { name: "batched", y: 100, min: 90, max: 100 },
  ];
  const svg = barPlot({ title: "Speed", note: "", bars });
  expectWellFormed(svg);
  const [short, long] = [
    ...svg.matchAll(/class="fill\d" x="170" y="[\d.]+" width="([\d.]+)"/g),
  ].map(([, width]) => Number(width));
  expect(long! / short!).toBeCloseTo(4);
});

test("a picture has colours for the light and the dark, and a ground of its own", () => {
  const svg = barPlot({ title: "", note: "", bars: [{ name: "a", y: 1 }] });
  const [light, dark] = svg.split("@media (prefers-color-scheme: dark)");
  const ground = (css: string) => /\.ground \{ fill: (#\w+) \}/.exec(css)![1];
  expect(ground(light!)).not.toBe(ground(dark!));
  expect(svg).toContain('<rect class="ground"');
});

test("names that look like markup are text", () => {
  const svg = barPlot({ title: "a < b & c", note: "<script>", bars: [{ name: "<x>", y: 0 }] });
  expectWellFormed(svg);
  expect(svg).toContain("a &lt; b &amp; c");
  expect(svg).not.toContain("<script>");
});
