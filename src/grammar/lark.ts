// Converts a Lark grammar into a regular expression, which can be enforced (pattern.ts). Rules are expanded where they
// are used, so recursive grammars are rejected.
import { type LarkGrammar, type LarkNode, LarkReader } from "./lark-reader.ts";
import { LarkError } from "./lark-terminals.ts";

const MAX_SOURCE = 64 * 1024;
/** Maximum characters of a pattern, as in pattern.ts. */
const MAX_PATTERN = 4000;

/** Returns a regular expression of all texts derived from `start`; throws a LarkError. */
export function larkPattern(source: string): string {
  if (source.length > MAX_SOURCE) throw new LarkError("is too large to enforce");
  const grammar = new LarkReader(source).read();
  return new PatternWriter(grammar).write();
}

class PatternWriter {
  readonly #grammar: LarkGrammar;
  readonly #written = new Map<string, string>();
  readonly #open = new Set<string>();
  #ignored = "";

  constructor(grammar: LarkGrammar) {
    this.#grammar = grammar;
    const ignored = this.#joined(grammar.ignored, true, "|");
    if (grammar.ignored.length > 0) this.#ignored = `(?:${ignored})*`;
  }

  write(): string {
    return bounded(this.#rule("start") + this.#ignored);
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
    const pattern = `(?:${this.#pattern(node, isTerminal)})`;
    this.#open.delete(name);
    this.#written.set(name, pattern);
    return pattern;
  }

  /** Converts a node to a pattern. Ignored terminals are allowed before every terminal, but not inside one. */
  #pattern(node: LarkNode, inTerminal: boolean): string {
    const before = inTerminal ? "" : this.#ignored;
    switch (node.kind) {
      case "pattern":
        return bounded(`${before}(?:${node.pattern})`);
      case "name": {
        const isTerminal = node.name === node.name.toUpperCase();
        return bounded((isTerminal ? before : "") + this.#rule(node.name));
      }
      case "sequence":
        return this.#joined(node.nodes, inTerminal, "");
      case "choice":
        return `(?:${this.#joined(node.nodes, inTerminal, "|")})`;
      case "repeat":
        return bounded(`(?:${this.#pattern(node.node, inTerminal)})${node.counts}`);
    }
  }

  /** Joins the nodes' patterns. Each step checks the length: thousands of nodes may name the same large rule. */
  #joined(nodes: readonly LarkNode[], inTerminal: boolean, separator: string): string {
    let joined = "";
    for (const [i, node] of nodes.entries()) {
      joined = bounded(joined + (i > 0 ? separator : "") + this.#pattern(node, inTerminal));
    }
    return joined;
  }
}

function bounded(pattern: string): string {
  if (pattern.length > MAX_PATTERN) throw new LarkError("is too large to enforce");
  return pattern;
}
