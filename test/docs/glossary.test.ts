import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, "../..");

test("each word of the glossary is a word of the file that its row names", () => {
  const rows = readFileSync(join(root, "docs/glossary.md"), "utf8").matchAll(
    /^\| (?!word |-)([^|]+) \| [^|]+ \| (.+) \|$/gm,
  );
  const lacking = [...rows].flatMap(([, words = "", files = ""]) =>
    [...files.matchAll(/`(.+?)`/g)].flatMap(([, file = ""]) => {
      const source = readFileSync(join(root, file), "utf8");
      const text = `${file} ${source}`.replace(/[\s*/]+/g, " ").toLowerCase();
      return words
        .replace(/ \(.*?\)/g, "")
        .split(", ")
        .filter(
          (word) =>
            ![word, word.replaceAll(" ", "")].some((each) => text.includes(each.toLowerCase())),
        )
        .map((word) => `${file}: ${word}`);
    }),
  );
  expect(lacking).toEqual([]);
});
