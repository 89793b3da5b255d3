// Creates the rules of one schema's grammar. The book creates each rule once, records the first keyword that cannot be
// enforced, and bounds the cost, so that writing and compiling the grammar of any schema ends in time.
import { literal } from "../pattern/alternatives.ts";
import { MAX_PATTERN_STEPS, Work } from "../pattern/pattern.ts";
import type { Part, Rule } from "../pattern/rules.ts";

/** Reason why a schema cannot be enforced. */
export type SchemaFault = {
  keyword: string;
  /** Position in the schema as a JSON pointer. */
  pointer: string;
  /** Keyword, position and reason, for the client. */
  message: string;
};

/** No part of the schema can be enforced. */
export class SchemaError extends Error {
  readonly fault: SchemaFault;

  constructor(fault: SchemaFault) {
    super(fault.message);
    this.fault = fault;
  }
}

export function faultOf(keyword: string, pointer: string, why: string): SchemaFault {
  const short = pointer.length > 80 ? `${pointer.slice(0, 77)}...` : pointer;
  const where = short === "" ? "" : ` at ${short}`;
  return { keyword, pointer: short, message: `${keyword}${where} ${why}` };
}

/** Maximum number of rules, and of characters of names and values: both cost compile time. */
const MAX_RULES = 3000;
const MAX_LITERALS = 50_000;
/** Maximum steps of comparing and merging schemas: tens of milliseconds. */
const MAX_STEPS = 60_000;

/** Bounds of a repetition. */
export type Counts = { min: number; max: number };

export class RuleBook {
  readonly #maxCost: number;
  /** Rules by schema, or by a text that identifies the rule. */
  readonly #rules = new Map<unknown, Rule>();
  readonly #pending: (() => void)[] = [];
  readonly #ids = new Map<Rule, number>();
  /** Costly rules that are already counted in `#cost`. */
  readonly #paid = new Set<string>();
  #cost = 0;
  #literals = 0;
  #steps = 0;
  #fault: SchemaFault | undefined;
  /** Work budget shared by all patterns. */
  readonly patternWork = new Work(MAX_PATTERN_STEPS);

  constructor(maxCost: number) {
    this.#maxCost = maxCost;
  }

  /** The first keyword that is not enforced. */
  get fault(): SchemaFault | undefined {
    return this.#fault;
  }

  get cost(): number {
    return this.#cost;
  }

  /** Records a keyword that is not enforced; the rest of the schema still is. */
  refuse(keyword: string, at: string, why: string): void {
    this.#fault ??= faultOf(keyword, at, why);
  }

  /** Returns the rule of this key. Its choices are written in `finish`, so that rules may be mutually recursive. */
  rule(key: unknown, choices: () => Part[][], follow?: string): Rule {
    const known = this.#rules.get(key);
    if (known) return known;
    const rule: Rule = follow === undefined ? { choices: [] } : { choices: [], follow };
    this.#rules.set(key, rule);
    this.#pending.push(() => rule.choices.push(...choices()));
    if (this.#rules.size <= MAX_RULES) return rule;
    throw new SchemaError(faultOf("schema", "", "comes to too many rules"));
  }

  /** Makes a rule that is used in one place. */
  ruleOf(choices: Part[][], follow?: string): Rule {
    return this.rule(choices, () => choices, follow);
  }

  /** Returns a rule that matches no text. */
  never(): Rule {
    return this.rule("never", () => []);
  }

  finish(): void {
    for (let write = this.#pending.shift(); write; write = this.#pending.shift()) write();
  }

  literal(text: string, keyword: string, at: string): string {
    this.#literals += text.length;
    if (this.#literals <= MAX_LITERALS) return literal(text);
    throw new SchemaError(faultOf(keyword, at, "is too much text to enforce"));
  }

  step(steps: number, keyword: string, at: string): void {
    this.#steps += steps;
    if (this.#steps <= MAX_STEPS) return;
    throw new SchemaError(faultOf(keyword, at, "takes too long to make out"));
  }

  /** Charges compile time; returns false if the budget does not suffice. */
  spend(cost: number, keyword: string, at: string): boolean {
    const isEnough = this.#cost + cost <= this.#maxCost;
    if (isEnough) this.#cost += cost;
    else this.refuse(keyword, at, "is too large to enforce");
    return isEnough;
  }

  /** Charges the compile time of costly rules that several places share, each rule once. */
  spendOnce(rules: readonly string[], keyword: string, at: string): boolean {
    const unpaid = rules.filter((rule) => !this.#paid.has(rule));
    if (!this.spend(unpaid.length, keyword, at)) return false;
    for (const rule of unpaid) this.#paid.add(rule);
    return true;
  }

  /** Repeats a rule. Blocks of 16 are rules themselves, recursively, so the number of rules is logarithmic. */
  times(part: Rule, { min, max }: Counts): Part[] {
    return [...this.#exactly(part, min), this.upTo(part, max - min)];
  }

  upTo(part: Rule, count: number): Rule {
    return this.rule(`${this.#ids.getOrInsert(part, this.#ids.size)} up to ${count}`, () => {
      if (count === 0) return [[]];
      if (count === Infinity || count < 16) return [[], [part, this.upTo(part, count - 1)]];
      let [block, size] = [this.#sixteen(part), 16];
      while (size * 16 <= count) [block, size] = [this.#sixteen(block), size * 16];
      return [[this.upTo(part, size - 1)], [block, this.upTo(part, count - size)]];
    });
  }

  #exactly(part: Rule, count: number): Part[] {
    const few = Array<Part>(count % 16).fill(part);
    return count < 16
      ? few
      : [...this.#exactly(this.#sixteen(part), Math.floor(count / 16)), ...few];
  }

  #sixteen(part: Rule): Rule {
    return this.rule(`sixteen ${this.#ids.getOrInsert(part, this.#ids.size)}`, () => [
      Array(16).fill(part),
    ]);
  }
}
