// Text that comes a character at a time, read as if all of it were there: a reading is a generator that
// gets the next character wherever it yields. It throws a Mismatch at the first one that does not fit.
import { StringMatcher } from "../text/string-matcher.ts";

export type Reading<T> = Generator<undefined, T, string>;

export class Mismatch extends Error {
  override name = "Mismatch";
}

export const isBlank = (char: string) =>
  char === " " || char === "\n" || char === "\t" || char === "\r";

/** The next character that is not blank. */
export function* pastBlanks(): Reading<string> {
  for (;;) {
    const char = yield;
    if (!isBlank(char)) return char;
  }
}

export function* literal(text: string): Reading<void> {
  for (const wanted of text) need(yield, wanted);
}

/** The text before `end`, which is read too. */
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
