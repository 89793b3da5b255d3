// Text from outside, as a terminal may show it: paths of requests, names in files, answers of a hub or a
// server. What would end a line, command the terminal or reorder text is shown as JSON escapes it, so that
// escaped JSON is the same JSON.

// Controls (C0, DEL, C1), line and paragraph separators, the controls of writing direction, and lone surrogates.
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

/** On one line. */
export function printable(text: string): string {
  return text.replace(unsafe, escaped);
}

/** With its line breaks and tabs. */
export function printableLines(text: string): string {
  return text.replace(unsafe, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));
}

function escaped(char: string): string {
  return escapes.get(char) ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
}
