// Rules of which no two alternatives begin alike. Where some begin and others end alike, the engine takes
// states for one that are not, and lets texts pass that are none of them: of "ccc", "abc" and "abb" also
// "ccb" (xgrammar's issue 618). Where all begin differently, there is nothing to mistake.

/** Parts of EBNF, one after the other. */
export type Alternative = readonly string[];

/** Rules in EBNF: one of this name, and those that it takes. */
export function alternativesRule(name: string, all: readonly Alternative[], follow = ""): string {
  let [rules, count] = ["", 0];
  // Those of a group are alike up to some place, and go on from there.
  const pending = [{ own: name, some: all.map(takenApart), from: 0 }];
  for (const { own, some, from } of pending) {
    const groups = Map.groupBy(some, (each) => each[from]);
    const choices = Array.from(groups, ([part, group]) => {
      const [first] = group;
      if (part === undefined || group.length === 1) return printed(first!.slice(from));
      const end = sharedEnd(group, from);
      // A rule, as groups in groups would soon be too deep for the engine.
      const next = `${name}_${count++}`;
      pending.push({ own: next, some: group, from: end });
      return printed([...first!.slice(from, end), next]);
    });
    rules += `${own} ::= ${choices.join(" | ")}${follow}\n`;
  }
  return rules;
}

/** A grammar of these texts. */
export function textsGrammar(texts: readonly string[]): string {
  return alternativesRule("root", texts.map(textParts));
}

/** A text byte by byte. */
export function textParts(text: string): string[] {
  return Array.from(Buffer.from(text), (byte) => {
    const char = String.fromCharCode(byte);
    return /[ -~]/.test(char) ? literal(char) : byteClass([[byte, byte]]);
  });
}

export function literal(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}

/** One byte of several. A class of a single byte would be taken for a character: it is written twice. */
export function byteClass(ranges: readonly (readonly [number, number])[]): string {
  const hex = (byte: number) => `\\x${byte.toString(16).padStart(2, "0")}`;
  const members = ranges.map(([from, to]) => `${hex(from)}${from === to ? "" : "-"}${hex(to)}`);
  return `[${members.join("")}]`;
}

const LITERAL = /^"((?:[^"\\]|\\["\\])*)"$/;

/** With texts as bytes. */
function takenApart(alternative: Alternative): string[] {
  return alternative.flatMap((part) => {
    const [, text] = LITERAL.exec(part) ?? [];
    return text === undefined ? [part] : textParts(text.replace(/\\(.)/g, "$1"));
  });
}

const BYTE = /^"(?:[^"\\]|\\.)"$/;

/** With bytes as texts. */
function printed(parts: Alternative): string {
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
