// Phrases that make a comment slow to read, and the plain words for them.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { commentsIn } from "../scripts/draw-comments.ts";

const root = join(import.meta.dir, "..");

const phrases: readonly (readonly [RegExp, string])[] = [
  [/^(?:Of (?!the\b)|Those |That of |The same of )/, "name the thing: a noun first"],
  [/^(?:What|With what|By what) /, "name the thing, or say who does what"],
  [/^(?:In place of|Beside) /, "Replaces ..., In addition to ..."],
  [/\bso many\b/i, "`count`, the number, Maximum"],
  [/\bno more than\b/i, "at most"],
  [/\bas many as there are\b/i, "one per"],
  [/\bunless (?:it|this|that) says\b/i, "by default"],
  [/\bwhere there (?:is|are)\b/i, "if"],
  [/\ball of it\b|\bby what\b/i, "a noun"],
  [
    /(?<!\b(?:falls?|fell|lags?|far) )\bbehind (?:it|them|each|the (?:last|first)|RoPE|attention)\b/i,
    "after",
  ],
  [/\bwhat (?:is|are|it|they|goes|makes|others?|was|were) /i, "a noun"],
  [/\bsomebody\b|\bnobody\b|\bwhoever\b/i, "client, user, thread: the one that is meant"],
];

/** Without the marks of comments and the breaks of lines. */
function prose(comment: string): string {
  return comment
    .replace(/^\s*(?:\/\*\*?|\/\/|\*\/|\*)/gm, " ")
    .replace("*/", "")
    .replace(/\s+/g, " ")
    .trim();
}

function slowPhrases(source: string): string[] {
  return commentsIn(source).flatMap(({ line, text }) =>
    phrases
      .filter(([phrase]) => phrase.test(prose(text)))
      .map(([, better]) => `${line}: ${prose(text)} (${better})`),
  );
}

test("a slow phrase in a comment is found", () => {
  expect(slowPhrases("/** So many blocks. */\nconst a = 1;")).toHaveLength(1);
  expect(slowPhrases("// Layers behind\n// it.\n")).toHaveLength(1);
  expect(slowPhrases("/** Maximum blocks. */")).toEqual([]);
});

test("comments have no phrases that stop the reader", () => {
  const files = [...new Bun.Glob("{src,ffi}/**/*.{ts,tsx,c,cpp,h}").scanSync(root)].toSorted();
  const found = files.flatMap((file) =>
    slowPhrases(readFileSync(join(root, file), "utf8")).map((slow) => `${file}:${slow}`),
  );
  expect(files.length).toBeGreaterThan(600);
  expect(found).toEqual([]);
});
