// Incremental parsing in direct style: a reading is a generator that receives the next character at each yield. It
// throws a Mismatch at the first character that does not fit.
import { StringMatcher } from "../../text/string-matcher.ts";

export type Reading<T> = Generator<undefined, T, string>;

export class Mismatch extends Error {
  override name = "Mismatch";
}

export const isBlank = (char: string) =>
  char === " " || char === "\n" || char === "\t" || char === "\r";

/** Reads up to the next character that is not blank, and returns it. */
export function* pastBlanks(): Reading<string> {
  for (;;) {
    const char = yield;
    if (!isBlank(char)) return char;
  }
}

export function* literal(text: string): Reading<void> {
  for (const wanted of text) need(yield, wanted);
}

/** Reads one of these texts, whose first character is `first`. No text may be the start of another. */
export function* marker(first: string, ...texts: readonly string[]): Reading<string> {
  let text = first;
  for (;;) {
    if (texts.includes(text)) return text;
    if (!texts.some((each) => each.startsWith(text))) throw new Mismatch();
    text += yield;
  }
}

/** Reads the text before `end`, and consumes `end` too. */
export function* until(end: string): Reading<string> {
  const matcher = new StringMatcher([end]);
  let text = "";
  for (;;) {
    const char = yield;
    text += char;
    if (matcher.take(char)) return text.slice(0, -end.length);
  }
}

export function need(char: string, wanted: string): void {
  if (char !== wanted) throw new Mismatch();
}
