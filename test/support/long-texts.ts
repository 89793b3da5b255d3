// Texts that a tokenizer may take long for, or much memory: runs of one character, noise, and real text.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { makeRandom } from "./random.ts";

const docs = join(import.meta.dir, "../../docs");

/** Escapes that a request may have. */
const MAX_ESCAPES = 2 ** 22;

/** Each is as long as fits so many bytes of JSON. */
export function longTexts(bytes: number): Record<string, string> {
  const filled = (unit: string) => {
    const written = JSON.stringify(unit).slice(1, -1);
    const escapes = written.split("\\").length - 1;
    const times = Math.min(bytes / Buffer.byteLength(written), MAX_ESCAPES / escapes);
    return unit.repeat(Math.floor(times));
  };
  const random = makeRandom(19);
  const noise = (below: number) => {
    const parts: string[] = [];
    for (let left = bytes; ; ) {
      const units = Array.from({ length: 4096 }, () => random.below(below));
      const part = String.fromCharCode(...units).toWellFormed();
      left -= Buffer.byteLength(JSON.stringify(part));
      if (left < 0) return parts.join("");
      parts.push(part);
    }
  };
  const page = readFileSync(join(docs, "architecture.md"), "utf8");
  return {
    spaces: filled(" "),
    "spaces and then one letter": `${filled(" ").slice(3)}中`,
    "a letter": filled("a"),
    "capital letters": filled("A"),
    "new lines": filled("\n"),
    "blanks of all kinds": filled(" \r\n\t"),
    digits: filled("7"),
    emoji: filled("😀"),
    "a Chinese character": filled("中"),
    "combining marks": filled("\u0301\u0323\u0344"),
    "parts of syllables": filled("\u1100\u1161\u11A8"),
    sigmas: filled("Σ"),
    "words of a letter": filled(" a"),
    angles: filled("<"),
    "control tokens": filled("<|im_end|>"),
    "beginnings of control tokens": filled("<|im_end|"),
    apostrophes: filled("'"),
    "stops and spaces": filled(". "),
    "random bytes": noise(2 ** 8),
    "random characters": noise(2 ** 16),
    "real text": filled(page),
  };
}
