// Finds a tokenizer's added tokens in text. Control tokens (turn markers, start and end tokens) are distinguished
// from the others: a model obeys them, so user input must never become one.
import type { AddedTokenJson } from "./tokenizer-json.ts";

export type Segment = { start: number; end: number } & (
  | { kind: "token"; id: number }
  | { kind: "text"; text: string }
);

/** Where control tokens are parsed: nowhere, everywhere, or everywhere except at these offsets. */
export type ControlTokens = "text" | "parse" | { readonly parseExceptAt: ReadonlySet<number> };

/** Whether a token is a control token. Brackets suffice: some models do not flag <｜User｜> as special. */
export function isControlToken(token: AddedTokenJson): boolean {
  return token.special === true || /^<[|｜].*[|｜]>$/s.test(token.content);
}

export interface AddedTokens {
  split(text: string, control: ControlTokens): Iterable<Segment>;
}

const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
const ENDS_IN_WORD = new RegExp(`${WORD}$`, "u");
const STARTS_WITH_WORD = new RegExp(`^${WORD}`, "u");

/** Builds the search for added tokens. `tokens` maps a token's searched text (raw or normalized) to the token. */
export function addedTokens(tokens: ReadonlyMap<string, AddedTokenJson>): AddedTokens {
  const plain = [...tokens].filter(([, token]) => !isControlToken(token)).map(([text]) => text);
  const findAny = matcher([...tokens.keys()], "g");
  const findPlain = matcher(plain, "g");
  const plainHere = matcher(plain, "y");

  function find(text: string, from: number, control: ControlTokens): RegExpExecArray | null {
    if (control === "text") return search(findPlain, text, from);
    for (let at = from; ; at++) {
      const match = search(findAny, text, at);
      if (!match || control === "parse" || !control.parseExceptAt.has(match.index)) return match;
      if (!isControlToken(tokens.get(match[0])!)) return match;
      // The control token is text here; a plain token may still start at the same offset.
      const other = search(plainHere, text, match.index);
      if (other) return other;
      at = match.index;
    }
  }

  return {
    *split(text, control) {
      const textOf = (start: number, end: number): Segment => {
        return { kind: "text", text: text.slice(start, end), start, end };
      };
      let done = 0;
      let from = 0;
      for (;;) {
        const match = find(text, from, control);
        if (!match) break;
        const token = tokens.get(match[0])!;
        let start = match.index;
        let end = start + match[0].length;
        from = end;
        if (token.single_word && touchesWord(text, start, end)) continue;
        if (token.lstrip) while (start > done && isSpace(text[start - 1]!)) start--;
        if (token.rstrip) while (end < text.length && isSpace(text[end]!)) end++;
        if (start > done) yield textOf(done, start);
        yield { kind: "token", id: token.id, start, end };
        done = end;
        from = end;
      }
      if (text.length > done) yield textOf(done, text.length);
    },
  };
}

/** Returns a regex that matches the longest of the texts at each offset; undefined without texts. */
export function matcher(texts: readonly string[], flag: "g" | "y"): RegExp | undefined {
  const written = texts.filter((text) => text !== "");
  return written.length === 0 ? undefined : new RegExp(trie(written), flag);
}

/** Writes the texts as one pattern with shared prefixes: some tokenizers have thousands of added tokens. */
function trie(texts: readonly string[]): string {
  const ends = texts.includes("");
  const byHead = Map.groupBy(
    texts.filter((text) => text !== ""),
    (text) => text[0]!,
  );
  if (byHead.size === 0) return "";
  const branches = Array.from(byHead, ([head, group]) => {
    return RegExp.escape(head) + trie(group.map((text) => text.slice(1)));
  });
  return `(?:${branches.join("|")})${ends ? "?" : ""}`;
}

function search(regex: RegExp | undefined, text: string, from: number): RegExpExecArray | null {
  if (!regex) return null;
  regex.lastIndex = from;
  return regex.exec(text);
}

function touchesWord(text: string, start: number, end: number): boolean {
  const before = text.slice(Math.max(0, start - 2), start);
  return ENDS_IN_WORD.test(before) || STARTS_WITH_WORD.test(text.slice(end, end + 2));
}

function isSpace(char: string): boolean {
  return /\p{White_Space}/u.test(char);
}
