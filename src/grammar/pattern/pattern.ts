// Regular expressions as finite automata, so that a text can be constrained by several of them and by bounds on its
// length at once. As in JSON Schema, a pattern may match anywhere in a text.
import { byteClass } from "./alternatives.ts";
import { type Automaton, type Edge, minimized, type State } from "./automaton.ts";
import {
  complement,
  intersect,
  MAX_CODE_POINT,
  printRules,
  type Range,
  type Rule,
  utf8,
} from "./rules.ts";

export const MAX_PATTERN_STEPS = 100_000;

/** Error that says why a pattern cannot be enforced. */
export class PatternError extends Error {}

/** Bounds the work: throws once all steps are used. */
export class Work {
  #left: number;

  constructor(steps: number) {
    this.#left = steps;
  }

  do(steps: number): void {
    this.#left -= steps;
    if (this.#left < 0) throw new PatternError(TOO_LARGE);
  }
}

const MAX_PATTERN = 4000;
const MAX_GROUPS = 50;
const MAX_STATES = 600;
const TOO_LARGE = "is too large to enforce";

/** Returns an automaton of the texts that contain a match of the pattern. */
export function readPattern(source: string, work: Work): Automaton {
  if (source.length > MAX_PATTERN) throw new PatternError(TOO_LARGE);
  try {
    new RegExp(source, "u");
  } catch {
    throw new PatternError("must be a regular expression");
  }
  const { node, ahead } = new PatternReader(source).read();
  const automaton = ahead.reduce(
    (before, { node: other, isNegative }) =>
      product(before, determinize(other, work), isNegative, work),
    determinize(node, work),
  );
  return minimized(automaton);
}

type Node =
  | { kind: "set"; ranges: readonly Range[] }
  | { kind: "sequence" | "choice"; nodes: readonly Node[] }
  | { kind: "repeat"; node: Node; min: number; max: number };

/** Pseudo-characters before and after each text: the anchors ^ and $ match them. */
const BEGIN = -1;
const END = MAX_CODE_POINT + 1;

const set = (ranges: readonly Range[]): Node => ({ kind: "set", ranges });
const single = (code: number): Range => [code, code];

const digits: readonly Range[] = [[0x30, 0x39]];
const letters: readonly Range[] = [
  [0x41, 0x5a],
  [0x61, 0x7a],
];
const words: readonly Range[] = [...digits, ...letters, single(0x5f)];
const lineEnds = [0x0a, 0x0d, 0x2028, 0x2029].map(single);
const blanks: readonly Range[] = [
  ...[0x09, 0x0b, 0x0c, 0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff].map(single),
  ...lineEnds,
  [0x2000, 0x200a],
];
const classes: ReadonlyMap<string, readonly Range[]> = new Map([
  ["d", digits],
  ["D", complement(digits)],
  ["w", words],
  ["W", complement(words)],
  ["s", blanks],
  ["S", complement(blanks)],
]);
const controls = new Map(Object.entries({ t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 }));

/** Parses a valid regular expression. */
class PatternReader {
  readonly #source: string[];
  #at = 0;
  #depth = 0;

  constructor(source: string) {
    this.#source = Array.from(source);
  }

  /** Reads the pattern and its leading lookaheads. */
  read(): { node: Node; ahead: { node: Node; isNegative: boolean }[] } {
    const ahead: { node: Node; isNegative: boolean }[] = [];
    const sees = () => this.#sees("(?=") || this.#sees("(?!");
    if (!this.#sees("^(?=") && !this.#sees("^(?!")) return { node: this.#choice(), ahead };
    const anchored = (node: Node): Node => ({
      kind: "sequence",
      nodes: [set([single(BEGIN)]), node],
    });
    this.#at += 1;
    while (sees()) {
      const isNegative = this.#sees("(?!");
      this.#at += 3;
      ahead.push({ node: anchored(this.#choice()), isNegative });
      this.#at += 1;
    }
    const node = this.#choice();
    // Rejected, because the lookaheads would apply only to the first branch.
    if (node.kind === "choice") throw new PatternError("has a lookahead, which cannot be enforced");
    return { node: anchored(node), ahead };
  }

  #sees(text: string): boolean {
    return this.#source.slice(this.#at, this.#at + text.length).join("") === text;
  }

  #eat(text: string): boolean {
    const isThere = this.#sees(text);
    if (isThere) this.#at += text.length;
    return isThere;
  }

  #next(): string {
    return this.#source[this.#at++]!;
  }

  #until(end: string): string {
    const from = this.#at;
    while (this.#next() !== end);
    return this.#source.slice(from, this.#at - 1).join("");
  }

  #choice(): Node {
    const nodes = [this.#sequence()];
    while (this.#eat("|")) nodes.push(this.#sequence());
    return nodes.length === 1 ? nodes[0]! : { kind: "choice", nodes };
  }

  #sequence(): Node {
    const nodes: Node[] = [];
    while (this.#at < this.#source.length && !this.#sees("|") && !this.#sees(")")) {
      const node = this.#atom();
      const counts = this.#counts();
      nodes.push(counts ? { kind: "repeat", node, ...counts } : node);
    }
    return { kind: "sequence", nodes };
  }

  #counts(): { min: number; max: number } | undefined {
    const sign = ["*", "+", "?", "{"].find((each) => this.#eat(each));
    if (sign === undefined) return undefined;
    const counts =
      sign === "{"
        ? this.#until("}").split(",")
        : { "*": [0, ""], "+": [1, ""], "?": [0, 1] }[sign]!;
    this.#eat("?");
    const [min, max = min] = counts;
    return { min: Number(min), max: max === "" ? Infinity : Number(max) };
  }

  #atom(): Node {
    const char = this.#next();
    switch (char) {
      case "(":
        return this.#group();
      case "[":
        return set(this.#class());
      case ".":
        return set(complement(lineEnds));
      case "^":
        return set([single(BEGIN)]);
      case "$":
        return set([single(END)]);
      case "\\":
        if (this.#sees("b") || this.#sees("B")) {
          throw new PatternError("has a word boundary, which cannot be enforced");
        }
        return set(this.#escape());
      default:
        return set([single(char.codePointAt(0)!)]);
    }
  }

  #group(): Node {
    if (this.#eat("?") && !this.#eat(":")) {
      if (!this.#sees("<") || this.#sees("<=") || this.#sees("<!")) {
        throw new PatternError("has a lookaround or flags, which cannot be enforced");
      }
      this.#until(">");
    }
    this.#depth += 1;
    if (this.#depth > MAX_GROUPS) throw new PatternError(TOO_LARGE);
    const node = this.#choice();
    this.#depth -= 1;
    this.#at += 1;
    return node;
  }

  #class(): readonly Range[] {
    const isNegated = this.#eat("^");
    const ranges: Range[] = [];
    while (!this.#eat("]")) {
      const members = this.#member();
      if (!this.#sees("-") || this.#sees("-]")) {
        ranges.push(...members);
        continue;
      }
      this.#at += 1;
      ranges.push([members[0]![0], this.#member()[0]![0]]);
    }
    return isNegated ? complement(ranges) : ranges;
  }

  #member(): readonly Range[] {
    if (this.#eat("\\b")) return [single(8)];
    return this.#eat("\\") ? this.#escape() : [single(this.#next().codePointAt(0)!)];
  }

  #escape(): readonly Range[] {
    const char = this.#next();
    const known = classes.get(char);
    if (known) return known;
    if (/[1-9k]/.test(char))
      throw new PatternError("has a back reference, which cannot be enforced");
    if (/[pP]/.test(char))
      throw new PatternError("has a Unicode property, which cannot be enforced");
    return [single(this.#escapedCode(char))];
  }

  #escapedCode(char: string): number {
    const control = controls.get(char);
    if (control !== undefined) return control;
    if (char === "c") return this.#next().codePointAt(0)! % 32;
    if (char === "x") return this.#hex(2);
    if (char !== "u") return char.codePointAt(0)!;
    if (this.#eat("{")) return Number.parseInt(this.#until("}"), 16);
    const unit = this.#hex(4);
    const isPair = unit >= 0xd800 && unit < 0xdc00 && this.#eat("\\u");
    return isPair ? String.fromCharCode(unit, this.#hex(4)).codePointAt(0)! : unit;
  }

  #hex(length: number): number {
    const digits = this.#source.slice(this.#at, this.#at + length).join("");
    this.#at += length;
    return Number.parseInt(digits, 16);
  }
}

/** A nondeterministic automaton with epsilon edges. */
class Nfa {
  readonly edges: { ranges: readonly Range[]; target: number }[][] = [];
  readonly #epsilons: number[][] = [];
  readonly #work: Work;

  constructor(work: Work) {
    this.#work = work;
  }

  add(): number {
    this.#work.do(1);
    this.#epsilons.push([]);
    return this.edges.push([]) - 1;
  }

  addEpsilon(from: number, to: number): void {
    this.#epsilons[from]!.push(to);
  }

  /** Adds the states of a node that starts at the state `from`; returns the state after the node. */
  build(node: Node, from: number): number {
    this.#work.do(1);
    switch (node.kind) {
      case "set": {
        const to = this.add();
        this.edges[from]!.push({ ranges: node.ranges, target: to });
        return to;
      }
      case "sequence":
        return node.nodes.reduce((at, each) => this.build(each, at), from);
      case "choice": {
        const to = this.add();
        for (const each of node.nodes) this.addEpsilon(this.build(each, from), to);
        return to;
      }
      case "repeat":
        return this.#buildRepeat(node, from);
    }
  }

  #buildRepeat({ node, min, max }: Node & { kind: "repeat" }, from: number): number {
    let at = from;
    for (let i = 0; i < min; i++) at = this.build(node, at);
    const to = this.add();
    this.addEpsilon(at, to);
    if (max === Infinity) {
      this.addEpsilon(this.build(node, to), to);
      return to;
    }
    for (let i = min; i < max; i++) {
      at = this.build(node, at);
      this.addEpsilon(at, to);
    }
    return to;
  }

  /** Returns the epsilon closure: the states and all states reachable from them without consuming a character. */
  closure(states: Iterable<number>): number[] {
    const all = new Set(states);
    for (const state of all) for (const next of this.#epsilons[state]!) all.add(next);
    this.#work.do(all.size);
    return [...all].toSorted((a, b) => a - b);
  }

  after(states: readonly number[], code: number): number[] {
    const out = states.flatMap((state) => this.edges[state]!);
    const has = (ranges: readonly Range[]) => ranges.some(([a, b]) => a <= code && code <= b);
    return this.closure(out.filter(({ ranges }) => has(ranges)).map(({ target }) => target));
  }

  /** Returns the code points at which the set of next states may change. */
  cuts(states: readonly number[]): number[] {
    const out = states.flatMap((state) => this.edges[state]!);
    const ranges = out.flatMap((edge) => intersect(edge.ranges, [[0, MAX_CODE_POINT]]));
    const cuts = new Set(ranges.flatMap(([from, to]) => [from, to + 1]));
    this.#work.do(cuts.size * ranges.length);
    return [...cuts].toSorted((a, b) => a - b);
  }
}

/** Builds the DFA of the texts that contain a match of this node. */
function determinize(node: Node, work: Work): Automaton {
  const nfa = new Nfa(work);
  const start = nfa.add();
  const found = nfa.add();
  for (const state of [start, found]) {
    nfa.edges[state]!.push({ ranges: [[BEGIN, END]], target: state });
  }
  nfa.addEpsilon(nfa.build(node, start), found);
  // After a match any text may follow, so the state `found` replaces all others.
  const settled = (states: number[]) => (states.includes(found) ? [found] : states);
  const after = (states: readonly number[], code: number) => settled(nfa.after(states, code));
  /** Takes the pseudo-character `end` repeatedly: several anchors in a row match at the same position. */
  const atEnd = (states: readonly number[], end: number) => {
    let all = nfa.closure(states);
    for (let before = 0; before < all.length; ) {
      before = all.length;
      all = nfa.closure([...all, ...nfa.after(all, end)]);
    }
    return settled(all);
  };
  return explored(atEnd([start], BEGIN), (states) => {
    const cuts = nfa.cuts(states);
    const edges = cuts.slice(1).map((to, i): Edge<number[]> => {
      const from = cuts[i]!;
      return { range: [from, to - 1], target: after(states, from) };
    });
    return { accepts: atEnd(states, END).includes(found), edges };
  });
}

/** Builds the product automaton, which accepts the intersection or, if `isNegative`, the difference. */
function product(a: Automaton, b: Automaton, isNegative: boolean, work: Work): Automaton {
  const nowhere = b.length;
  if (a.length === 0) return [];
  return explored([0, 0], ([i, j]: readonly [number, number]) => {
    const [one, other] = [a[i]!, b[j] ?? { accepts: false, edges: [] }];
    work.do(one.edges.length * (other.edges.length + 1));
    const edges = one.edges.flatMap(({ range, target }) => {
      const shared = other.edges.flatMap((edge) =>
        intersect([range], [edge.range]).map((part) => ({ range: part, next: edge.target })),
      );
      const apart = intersect([range], complement(shared.map((edge) => edge.range)));
      const rest = isNegative ? apart.map((part) => ({ range: part, next: nowhere })) : [];
      return [...shared, ...rest].map((edge) => ({
        range: edge.range,
        target: [target, edge.next] as const,
      }));
    });
    return { accepts: one.accepts && other.accepts !== isNegative, edges };
  });
}

export function both(a: Automaton, b: Automaton, work: Work): Automaton {
  return product(a, b, false, work);
}

/** Restricts an automaton to texts of `min` to `max` characters. */
export function withLength(automaton: Automaton, min: number, max: number): Automaton {
  if (automaton.length === 0) return automaton;
  return explored([0, 0], ([i, count]: readonly [number, number]) => {
    const { accepts, edges } = automaton[i]!;
    const next = max === Infinity ? Math.min(count + 1, min) : count + 1;
    return {
      accepts: accepts && count >= min,
      edges:
        next > max ? [] : edges.map((edge) => ({ ...edge, target: [edge.target, next] as const })),
    };
  });
}

type Visit<T> = (state: T) => { accepts: boolean; edges: readonly Edge<T>[] };

/** Builds an automaton of the states that are reachable and from which an accepting state is reachable. */
function explored<T extends readonly number[]>(start: T, visit: Visit<T>): Automaton {
  const numbers = new Map([[start.join(), 0]]);
  const pending = [start];
  const states: State[] = [];
  for (const state of pending) {
    const { accepts, edges } = visit(state);
    const numbered = edges.map(({ range, target }) => {
      const key = target.join();
      const number = numbers.get(key) ?? numbers.size;
      if (number === numbers.size) pending.push(target);
      numbers.set(key, number);
      return { range, target: number };
    });
    states.push({ accepts, edges: numbered });
    if (numbers.size > MAX_STATES) throw new PatternError(TOO_LARGE);
  }
  return trimmed(states);
}

function trimmed(states: readonly State[]): Automaton {
  const live = new Set<number>();
  for (let before = -1; before < live.size; ) {
    before = live.size;
    for (let i = states.length - 1; i >= 0; i--) {
      const { accepts, edges } = states[i]!;
      if (accepts || edges.some(({ target }) => live.has(target))) live.add(i);
    }
  }
  if (!live.has(0)) return [];
  const kept = [...live].toSorted((a, b) => a - b);
  const numbers = new Map(kept.map((old, number) => [old, number]));
  return kept.map((old) => ({
    accepts: states[old]!.accepts,
    edges: states[old]!.edges.flatMap(({ range, target }) =>
      live.has(target) ? [{ range, target: numbers.get(target)! }] : [],
    ),
  }));
}

/**
 * Estimates the compile time of an automaton; a state in which every token may begin costs 1. Half of a vocabulary
 * begins with a space, most of the rest with a letter. A state with a loop is cheap if no edge with a space or letter
 * leaves it.
 */
export function costOf(automaton: Automaton): number {
  const size = (ranges: readonly Range[]) => ranges.reduce((sum, [a, b]) => sum + b - a + 1, 0);
  const share = (edges: readonly Edge<number>[]) => {
    const ranges = edges.map(({ range }) => range);
    const space = size(intersect(ranges, [single(0x20)]));
    return 0.6 * space + (0.4 * size(intersect(ranges, letters))) / 52;
  };
  const costs = automaton.map(({ edges }, i) => {
    const away = edges.filter(({ target }) => target !== i);
    return 0.03 + (share(away) === 0 ? 0.1 * share(edges) : share(edges));
  });
  return costs.reduce((sum, cost) => sum + cost, 0);
}

/** Returns a grammar of the texts that the expression matches entirely; throws an error that names the fault. */
export function regexGrammar(source: string): string {
  try {
    const strict = withoutNeedlessEscapes(source);
    new RegExp(strict, "u");
    const automaton = readPattern(`^(?:${strict})$`, new Work(MAX_PATTERN_STEPS));
    const rules = automaton.map((): Rule => ({ choices: [] }));
    for (const [i, { accepts, edges }] of automaton.entries()) {
      const { choices } = rules[i]!;
      if (accepts) choices.push([]);
      for (const { range, target } of edges) {
        for (const bytes of spellings(range)) {
          choices.push([...bytes.map((each) => byteClass([each])), rules[target]!]);
        }
      }
    }
    const text = rules[0] && printRules(rules[0]);
    if (text === undefined) throw new PatternError("matches no text");
    return text;
  } catch (error) {
    if (error instanceof PatternError) throw new Error(`the expression ${error.message}`);
    throw error instanceof SyntaxError ? new Error("it is not a regular expression") : error;
  }
}

/** Writes escaped punctuation, and braces outside quantifiers, as \x codes: the flag `u` forbids some of them. */
function withoutNeedlessEscapes(source: string): string {
  const code = (char: string) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return source
    .replace(/\\([!-/:-@[-`{-~ ])/g, (_, char: string) => code(char))
    .replace(/(?<!\\[upP])\{(?!\d+(?:,\d*)?\})/g, code("{"))
    .replace(/(?<!\{\d+(?:,\d*)?|\\[upP]\{[^}]*)\}/g, code("}"));
}

function spellings([from, to]: Range): Range[][] {
  const [all, beyond]: Range[][] = [
    [[from, to]],
    [
      [0x80, 0xd7ff],
      [0xe000, MAX_CODE_POINT],
    ],
  ];
  const ascii = intersect(all!, [[0, 0x7f]]).map((range) => [range]);
  return [...ascii, ...intersect(all!, beyond!).flatMap(([first, last]) => utf8(first, last))];
}
