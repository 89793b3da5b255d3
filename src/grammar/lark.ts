// A grammar in Lark's language as a regular expression, which the grammar of a string can enforce (pattern.ts).
// Rules are written out where they are used, so a grammar whose rules contain themselves has none.
import { type LarkGrammar, type LarkNode, LarkReader } from "./lark-reader.ts";
import { LarkError } from "./lark-terminals.ts";

const MAX_SOURCE = 64 * 1024;
/** As much as pattern.ts reads. */
const MAX_PATTERN = 4000;

/** The regular expression of the texts that `start` derives; throws a LarkError. */
export function larkPattern(source: string): string {
  if (source.length > MAX_SOURCE) throw new LarkError("is too large to enforce");
  const grammar = new LarkReader(source).read();
  return new PatternWriter(grammar).write();
}

class PatternWriter {
  readonly #grammar: LarkGrammar;
  readonly #written = new Map<string, string>();
  readonly #open = new Set<string>();
  readonly #ignored: string;

  constructor(grammar: LarkGrammar) {
    this.#grammar = grammar;
    const ignored = grammar.ignored.map((node) => this.#pattern(node, true));
    this.#ignored = ignored.length > 0 ? `(?:${ignored.join("|")})*` : "";
  }

  write(): string {
    return this.#rule("start") + this.#ignored;
  }

  #rule(name: string): string {
    const known = this.#written.get(name);
    if (known !== undefined) return known;
    const node = this.#grammar.rules.get(name);
    if (!node) throw new LarkError(`has no rule ${name}`);
    if (this.#open.has(name)) {
      throw new LarkError(`has a rule that contains itself (${name}), which cannot be enforced`);
    }
    this.#open.add(name);
    const isTerminal = name === name.toUpperCase();
    const pattern = this.#bounded(`(?:${this.#pattern(node, isTerminal)})`);
    this.#open.delete(name);
    this.#written.set(name, pattern);
    return pattern;
  }

  /** What is ignored may stand before every terminal, and not inside one. */
  #pattern(node: LarkNode, inTerminal: boolean): string {
    const before = inTerminal ? "" : this.#ignored;
    switch (node.kind) {
      case "pattern":
        return `${before}(?:${node.pattern})`;
      case "name": {
        const isTerminal = node.name === node.name.toUpperCase();
        return (isTerminal ? before : "") + this.#rule(node.name);
      }
      case "sequence":
        return this.#bounded(node.nodes.map((each) => this.#pattern(each, inTerminal)).join(""));
      case "choice": {
        const choices = node.nodes.map((each) => this.#pattern(each, inTerminal));
        return this.#bounded(`(?:${choices.join("|")})`);
      }
      case "repeat":
        return `(?:${this.#pattern(node.node, inTerminal)})${node.counts}`;
    }
  }

  #bounded(pattern: string): string {
    if (pattern.length > MAX_PATTERN) throw new LarkError("is too large to enforce");
    return pattern;
  }
}
