import { expect, test } from "bun:test";
import { Markers } from "../../src/tools/markers.ts";
import { makeRandom } from "../support/random.ts";

test("a mark is found where it ends, and the search begins anew", () => {
  const markers = new Markers(["aa", "ab"]);
  expect(Array.from("aaaab", (char) => markers.take(char))).toEqual([
    undefined,
    "aa",
    undefined,
    "aa",
    undefined,
  ]);
});

test("so much of any text is held as may become a mark", () => {
  const random = makeRandom(1);
  const word = (length: number) => Array.from({ length }, () => "ab"[random.below(2)]).join("");
  for (let round = 0; round < 300; round++) {
    const marks = Array.from({ length: 1 + random.below(3) }, () => word(2 + random.below(4)));
    const markers = new Markers(marks);
    let seen = "";
    for (const char of word(20)) {
      seen += char;
      const found = markers.take(char);
      const ending = marks.find((mark) => seen.endsWith(mark));
      expect(found).toBe(ending);
      if (found !== undefined) seen = "";
      const beginnings = marks.flatMap((mark) => Array.from(mark, (_, i) => mark.slice(0, i)));
      const held = beginnings.filter((beginning) => seen.endsWith(beginning));
      expect(markers.held).toBe(Math.max(...held.map(({ length }) => length)));
    }
  }
});
