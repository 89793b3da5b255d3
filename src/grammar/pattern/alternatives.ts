// Rules whose alternatives all begin differently. If some alternatives share a prefix and others a suffix, xgrammar
// merges distinct states and accepts texts that match no alternative: given "ccc", "abc" and "abb", it also accepts
// "ccb" (xgrammar issue 618). Factoring out shared prefixes avoids that.

/** A sequence of parts in EBNF. */
export type Alternative = readonly string[];

/** Prints the EBNF rule of this name, with helper rules that factor out shared prefixes. */
export function alternativesRule(name: string, all: readonly Alternative[], follow = ""): string {
  let [rules, count] = ["", 0];
  // Groups of alternatives to print as rules. The alternatives of a group are equal before the index `from`.
  const pending = [{ own: name, some: all.map(splitLiterals), from: 0 }];
  for (const { own, some, from } of pending) {
    const groups = Map.groupBy(some, (each) => each[from]);
    const choices = Array.from(groups, ([part, group]) => {
      const [first] = group;
      if (part === undefined || group.length === 1) return joinLiterals(first!.slice(from));
      const end = sharedEnd(group, from);
      // The parts after the shared prefix get their own rule: nesting them here would exceed xgrammar's depth limit.
      const next = `${name}_${count++}`;
      pending.push({ own: next, some: group, from: end });
      return joinLiterals([...first!.slice(from, end), next]);
    });
    rules += `${own} ::= ${choices.join(" | ")}${follow}\n`;
  }
  return rules;
}

/** Returns a grammar that matches exactly these texts. */
export function textsGrammar(texts: readonly string[]): string {
  return alternativesRule("root", texts.map(textParts));
}

/** Splits a text into parts of one byte. */
export function textParts(text: string): string[] {
  return Array.from(Buffer.from(text), (byte) => byteParts[byte]!);
}

export function literal(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}

/** Prints a class of bytes. A single byte is written twice, because xgrammar treats a class of one as a character. */
export function byteClass(ranges: readonly (readonly [number, number])[]): string {
  const hex = (byte: number) => `\\x${byte.toString(16).padStart(2, "0")}`;
  const members = ranges.map(([from, to]) => `${hex(from)}${from === to ? "" : "-"}${hex(to)}`);
  return `[${members.join("")}]`;
}

/** The EBNF part of each byte value, made once: the texts to choose from may have a quarter of a million bytes. */
const byteParts = Array.from({ length: 256 }, (_, byte) => {
  const char = String.fromCharCode(byte);
  return /[ -~]/.test(char) ? literal(char) : byteClass([[byte, byte]]);
});

const LITERAL = /^"((?:[^"\\]|\\["\\])*)"$/;

/** Splits the literals of an alternative into bytes. */
function splitLiterals(alternative: Alternative): string[] {
  return alternative.flatMap((part) => {
    const [, text] = LITERAL.exec(part) ?? [];
    return text === undefined ? [part] : textParts(text.replace(/\\(.)/g, "$1"));
  });
}

const BYTE = /^"(?:[^"\\]|\\.)"$/;

/** Joins adjacent bytes into literals. */
function joinLiterals(parts: Alternative): string {
  const written: string[] = [];
  let text = "";
  for (const part of [...parts, ""]) {
    if (BYTE.test(part)) text += part.slice(1, -1);
    else {
      if (text !== "") written.push(`"${text}"`);
      if (part !== "") written.push(part);
      text = "";
    }
  }
  return written.join(" ") || '""';
}

function sharedEnd([first, ...others]: readonly Alternative[], from: number): number {
  let end = from;
  while (end < first!.length && others.every((other) => other[end] === first![end])) end += 1;
  return end;
}
