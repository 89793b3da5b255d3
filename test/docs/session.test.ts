import { expect, test } from "bun:test";
import { drawSession } from "../../scripts/session.ts";

/** Where each text stands, when it comes, and what it is. */
function textsOf(picture: string): [x: number, y: number, ms: number, text: string][] {
  const texts = picture.matchAll(/<text [^>]*x="(\d+)" y="([\d.]+)"[^>]*: (\d+)ms">(.*)<\/text>/g);
  return Array.from(texts, ([, x, y, ms, text]) => [Number(x), Number(y), Number(ms), text!]);
}

test("a session shows what was typed and printed, each at its time", () => {
  const picture = drawSession([
    { kind: "typed", text: "$ ask\n", atMs: 0 },
    { kind: "printed", text: "The", atMs: 100.4 },
    { kind: "printed", text: " answer\n\nend", atMs: 250 },
  ]);
  const [typed, first, second, end] = textsOf(picture);
  expect([typed, first, second, end].map((each) => each?.slice(2))).toEqual([
    [0, "$ ask"],
    [100, "The"],
    [250, " answer"],
    [250, "end"],
  ]);
  expect(second![1]).toBe(first![1]);
  expect(second![0] - first![0]).toBe(3 * 8);
  expect(end![1] - first![1]).toBe(2 * (first![1] - typed![1]));
});

test("long lines are wrapped, and nothing is taken for SVG", () => {
  const line = `${"a".repeat(150)}<&>`;
  const texts = textsOf(drawSession([{ kind: "printed", text: line, atMs: 0 }]));
  expect(texts.map(([x]) => x)).toEqual([16, 16]);
  expect(texts.map(([, , , text]) => text).join("")).toBe(`${"a".repeat(150)}&lt;&amp;&gt;`);
});
