// Escapes text from outside for a terminal: request paths, names in files, answers of a hub or a server. Characters
// that would end a line, control the terminal or reorder text become JSON escapes, so that JSON stays valid and keeps
// its meaning.

// Control characters (C0, DEL, C1), line and paragraph separators, bidirectional controls, and lone surrogates.
const unsafe =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu;

const escapes = new Map([
  ["\b", "\\b"],
  ["\t", "\\t"],
  ["\n", "\\n"],
  ["\f", "\\f"],
  ["\r", "\\r"],
]);

/** Escapes text to one line. */
export function printable(text: string): string {
  return text.replace(unsafe, escaped);
}

/** Escapes text, but keeps its line breaks and tabs. */
export function printableLines(text: string): string {
  return text.replace(unsafe, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));
}

function escaped(char: string): string {
  return escapes.get(char) ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
}
