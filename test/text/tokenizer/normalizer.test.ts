// scripts/goldens/normal_forms.py writes the golden.
import { expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { normalizer } from "../../../src/text/tokenizer/normalizer.ts";

type Golden = { ranges: [first: number, end: number][]; pairs: string; sha256: object };

const path = join(import.meta.dir, "../../golden/authors/normal-forms.json");
const { ranges, pairs, sha256 }: Golden = JSON.parse(readFileSync(path, "utf8"));

/** Each character alone and between marks of two classes, and all pairs that Unicode composes. */
function everyCharacter(): string {
  const lines: string[] = [];
  for (const [first, end] of ranges) {
    for (let code = first; code < end; code++) {
      const char = String.fromCodePoint(code);
      lines.push(char, `\u0301${char}\u0334`);
    }
  }
  return ["", ...lines, ...(pairs.match(/../gsu) ?? [])].join("\n");
}

test.each(Object.entries(sha256))("%s is that of tokenizers, for every character", (type, hash) => {
  const steps = normalizer({ type })(everyCharacter(), true);
  let step = steps.next();
  while (!step.done) step = steps.next();
  expect(createHash("sha256").update(step.value).digest("hex")).toBe(hash);
});
