import { expect, test } from "bun:test";
import { StringMatcher } from "../../src/text/string-matcher.ts";
import { makeRandom } from "../support/random.ts";

test("a string is found where it ends, and the search starts over", () => {
  const matcher = new StringMatcher(["aa", "ab"]);
  const taken = Array.from("aaaab", (char) => matcher.take(char));
  expect(taken).toEqual([undefined, "aa", undefined, "aa", undefined]);
});

test("the longest string wins, and only what may become one is held back", () => {
  const random = makeRandom(1);
  const word = (length: number) => Array.from({ length }, () => "ab"[random.below(2)]).join("");
  for (let round = 0; round < 300; round++) {
    const texts = Array.from({ length: 1 + random.below(3) }, () => word(2 + random.below(4)));
    const matcher = new StringMatcher(texts);
    let seen = "";
    for (const char of word(20)) {
      seen += char;
      const found = matcher.take(char);
      const complete = texts.filter((text) => seen.endsWith(text));
      expect(found).toBe(complete.toSorted((a, b) => b.length - a.length)[0]);
      if (found !== undefined) seen = "";
      const beginnings = texts.flatMap((text) => Array.from(text, (_, i) => text.slice(0, i)));
      const held = beginnings.filter((beginning) => seen.endsWith(beginning));
      expect(matcher.held).toBe(Math.max(...held.map(({ length }) => length)));
    }
  }
});
