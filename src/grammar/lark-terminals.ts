// Lark's terminals as regular expressions: strings, expressions, and the importable library.

/** Error that says why a Lark grammar cannot be enforced. */
export class LarkError extends Error {
  override name = "LarkError";
}

/** Patterns of Lark's library of terminals, by name. */
export const common: ReadonlyMap<string, string> = new Map(
  Object.entries({
    DIGIT: "[0-9]",
    HEXDIGIT: "[0-9a-fA-F]",
    INT: "[0-9]+",
    SIGNED_INT: "[+\\-]?[0-9]+",
    DECIMAL: "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)",
    FLOAT: "(?:[0-9]+[eE][+\\-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?)",
    SIGNED_FLOAT:
      "[+\\-]?(?:[0-9]+[eE][+\\-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?)",
    NUMBER: "(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?",
    SIGNED_NUMBER: "[+\\-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?",
    LCASE_LETTER: "[a-z]",
    UCASE_LETTER: "[A-Z]",
    LETTER: "[a-zA-Z]",
    WORD: "[a-zA-Z]+",
    CNAME: "[a-zA-Z_][a-zA-Z0-9_]*",
    WS: "[ \\t\\f\\r\\n]+",
    WS_INLINE: "[ \\t]+",
    CR: "\\r",
    LF: "\\n",
    NEWLINE: "(?:\\r?\\n)+",
    ESCAPED_STRING: '"(?:[^"\\\\\\n]|\\\\[^\\n])*"',
  }),
);

/** Decodes a string token, which has quotes, escapes and flags. */
export function textOf(token: string): string {
  const text = token.slice(1, token.lastIndexOf('"'));
  return text.replace(/\\(?:x(..)|u(.{4})|(.))/g, (_, x, u, char: string) => {
    const code: string | undefined = x ?? u;
    return code ? String.fromCharCode(Number.parseInt(code, 16)) : (escapes.get(char) ?? char);
  });
}

const escapes = new Map(Object.entries({ n: "\n", t: "\t", r: "\r", f: "\f", v: "\v", b: "\b" }));

export function textPattern(token: string): string {
  const chars = Array.from(textOf(token));
  if (!token.endsWith("i")) return chars.map(escaped).join("");
  return chars
    .map((char) => {
      const [lower, upper] = [char.toLowerCase(), char.toUpperCase()];
      return lower === upper ? escaped(char) : `[${lower}${upper}]`;
    })
    .join("");
}

export function escaped(char: string): string {
  if (char === "\n") return "\\n";
  return char.replace(/[\\^$.*+?()[\]{}|/-]/, (sign) => (sign === "-" ? "\\x2d" : `\\${sign}`));
}

/** Translates a Python regular expression into JavaScript's syntax. */
export function regexpPattern(token: string): string {
  const end = token.lastIndexOf("/");
  const flags = token.slice(end + 1);
  if (/[imlx]/.test(flags))
    throw new LarkError("has flags of an expression, which cannot be enforced");
  const any = flags.includes("s") ? "[^]" : "[^\\n]";
  let isClass = false;
  return token
    .slice(1, end)
    .replace(/\\.|\(\?P<\w+>|[.[\]^$]/gs, (part, at: number, all: string) => {
      if (part.startsWith("(?P<")) return "(?:";
      if (part.startsWith("\\")) return sameEscape(part[1]!, isClass);
      if (part === "[" && !isClass) isClass = true;
      else if (part === "]") isClass = false;
      else if (part === "[") return "\\[";
      else if (isClass) return part;
      else if (part === ".") return any;
      else if (part === "^" || part === "$") {
        if (at > 0 && at < all.length - 1) throw new LarkError("has an anchor in an expression");
        return "";
      }
      return part;
    });
}

/** Drops the backslash of an escape that only Python allows. */
function sameEscape(char: string, isClass: boolean): string {
  if (/[\w^$\\.*+?()[\]{}|/]/.test(char)) return `\\${char}`;
  return char === "-" && isClass ? "\\-" : char;
}
