// Parses a grammar in Lark's language.
import {
  common,
  escaped,
  LarkError,
  regexpPattern,
  textOf,
  textPattern,
} from "./lark-terminals.ts";

const MAX_DEPTH = 100;

const KINDS = ["name", "sign", "line", "string", "regexp", "number"] as const;

type Token = { kind: (typeof KINDS)[number]; text: string };

const TOKEN = new RegExp(
  [
    String.raw`(?<skip>[ \t\f]+|//[^\n]*|#[^\n]*)`,
    String.raw`(?<line>\r?\n)`,
    String.raw`(?<string>"(?:[^"\\\n]|\\.)*"i?)`,
    String.raw`(?<regexp>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)`,
    String.raw`(?<name>[A-Za-z_]\w*)`,
    String.raw`(?<number>[+-]?\d+)`,
    String.raw`(?<sign>->|\.\.|[%?!:|()[\]*+~.,{}])`,
  ].join("|"),
  "y",
);

function tokensOf(source: string): Token[] {
  const tokens: Token[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < source.length) {
    const groups = TOKEN.exec(source)?.groups;
    if (!groups) throw new LarkError("is not written in Lark's language");
    const kind = KINDS.find((each) => groups[each] !== undefined);
    if (kind) tokens.push({ kind, text: groups[kind]! });
  }
  return [...tokens, { kind: "line", text: "\n" }];
}

export type LarkNode =
  | { kind: "name"; name: string }
  /** A regular expression. */
  | { kind: "pattern"; pattern: string }
  | { kind: "sequence" | "choice"; nodes: readonly LarkNode[] }
  | { kind: "repeat"; node: LarkNode; counts: string };

export type LarkGrammar = {
  rules: ReadonlyMap<string, LarkNode>;
  /** Terminals of %ignore, which are allowed between any two other terminals. */
  ignored: readonly LarkNode[];
};

export class LarkReader {
  readonly #tokens: readonly Token[];
  #at = 0;
  readonly #rules = new Map<string, LarkNode>();
  readonly #ignored: LarkNode[] = [];

  constructor(source: string) {
    this.#tokens = tokensOf(source);
  }

  read(): LarkGrammar {
    for (;;) {
      this.#skipLines();
      if (this.#at === this.#tokens.length) break;
      if (this.#eat("%")) this.#directive();
      else this.#rule();
    }
    if (!this.#rules.has("start")) throw new LarkError("has no rule start");
    return { rules: this.#rules, ignored: this.#ignored };
  }

  get #token(): Token | undefined {
    return this.#tokens[this.#at];
  }

  #skipLines(): void {
    while (this.#token?.kind === "line") this.#at += 1;
  }

  #sees(sign: string): boolean {
    return this.#token?.kind === "sign" && this.#token.text === sign;
  }

  #eat(sign: string): boolean {
    const isThere = this.#sees(sign);
    if (isThere) this.#at += 1;
    return isThere;
  }

  #need(sign: string): void {
    if (this.#sees("{")) this.#take("sign");
    if (!this.#eat(sign)) throw new LarkError("is not written in Lark's language");
  }

  #take(kind: Token["kind"]): string {
    if (this.#sees("{")) throw new LarkError("has templates, which cannot be enforced");
    const token = this.#token;
    if (token?.kind !== kind) throw new LarkError("is not written in Lark's language");
    this.#at += 1;
    return token.text;
  }

  #directive(): void {
    const name = this.#take("name");
    if (name === "ignore") {
      this.#ignored.push(this.#choice(0));
      this.#take("line");
      return;
    }
    if (name !== "import") throw new LarkError(`has %${name}, which cannot be enforced`);
    if (this.#take("name") !== "common") throw new LarkError("imports from other than common");
    if (this.#eat("(")) {
      do this.#import(this.#take("name"));
      while (this.#eat(","));
      this.#need(")");
    } else {
      this.#need(".");
      const from = this.#take("name");
      this.#import(from, this.#eat("->") ? this.#take("name") : from);
    }
    this.#take("line");
  }

  #import(from: string, name = from): void {
    const pattern = common.get(from);
    if (pattern === undefined) throw new LarkError(`imports common.${from}, which is not known`);
    this.#rules.set(name, { kind: "pattern", pattern });
  }

  #rule(): void {
    while (this.#eat("?") || this.#eat("!"));
    const name = this.#take("name");
    // Skips the priority of a terminal. Priorities choose between terminals that match the same text; in a regular
    // expression, both match.
    if (this.#eat(".")) this.#take("number");
    this.#need(":");
    if (this.#rules.has(name)) throw new LarkError(`has two rules ${name}`);
    this.#rules.set(name, this.#choice(0));
    this.#take("line");
  }

  #choice(depth: number): LarkNode {
    if (depth > MAX_DEPTH) throw new LarkError("is nested too deep");
    const nodes = [this.#sequence(depth)];
    while (this.#sees("|") || this.#seesOrBelow()) {
      this.#skipLines();
      this.#need("|");
      nodes.push(this.#sequence(depth));
    }
    return nodes.length === 1 ? nodes[0]! : { kind: "choice", nodes };
  }

  /** Whether the next line continues the rule with another alternative. */
  #seesOrBelow(): boolean {
    let at = this.#at;
    while (this.#tokens[at]?.kind === "line") at += 1;
    const { kind, text } = this.#tokens[at] ?? { kind: "line", text: "" };
    return kind === "sign" && text === "|";
  }

  #sequence(depth: number): LarkNode {
    const nodes: LarkNode[] = [];
    for (;;) {
      // Line breaks are insignificant within brackets.
      if (depth > 0) this.#skipLines();
      const { kind, text } = this.#token!;
      const isAtom = ["name", "string", "regexp"].includes(kind) || text === "(" || text === "[";
      if (!isAtom) break;
      nodes.push(this.#repeated(this.#atom(depth)));
    }
    if (this.#eat("->")) this.#take("name");
    return { kind: "sequence", nodes };
  }

  #repeated(node: LarkNode): LarkNode {
    for (const sign of ["*", "+", "?"]) {
      if (this.#eat(sign)) return { kind: "repeat", node, counts: sign };
    }
    if (!this.#eat("~")) return node;
    const min = this.#take("number");
    const max = this.#eat("..") ? this.#take("number") : min;
    return { kind: "repeat", node, counts: `{${Number(min)},${Number(max)}}` };
  }

  #atom(depth: number): LarkNode {
    if (this.#eat("(")) {
      const node = this.#choice(depth + 1);
      this.#need(")");
      return node;
    }
    if (this.#eat("[")) {
      const node = this.#choice(depth + 1);
      this.#need("]");
      return { kind: "repeat", node, counts: "?" };
    }
    const { kind, text } = this.#token!;
    this.#at += 1;
    if (kind === "name") return { kind: "name", name: text };
    if (kind === "regexp") return { kind: "pattern", pattern: regexpPattern(text) };
    if (!this.#eat("..")) return { kind: "pattern", pattern: textPattern(text) };
    const [from, to] = [text, this.#take("string")].map(textOf);
    return { kind: "pattern", pattern: `[${escaped(from!)}-${escaped(to!)}]` };
  }
}
