// Rules of a grammar, printed as EBNF for xgrammar.
//
// Two properties of xgrammar determine the form. A character class matches one byte, so characters beyond ASCII are
// spelled as UTF-8 bytes. And a token that extends past the end of the rule it begins in is rechecked for every mask,
// unless the rule has a lookahead, `(= ...)`.
import { alternativesRule } from "./alternatives.ts";

/** Part of a rule: EBNF text, or another rule. */
export type Part = string | Rule;
export type Rule = { choices: Part[][]; follow?: string };

/** Range of code points, both ends inclusive. */
export type Range = readonly [number, number];

export const MAX_CODE_POINT = 0x10ffff;

/** Prints the productive rules as EBNF; undefined if the root matches no text. */
export function printRules(root: Rule): string | undefined {
  const all = new Set([root]);
  for (const rule of all) {
    for (const part of rule.choices.flat()) if (typeof part !== "string") all.add(part);
  }
  const ending = endingRules([...all]);
  if (!ending.has(root)) return undefined;
  const names = new Map<Rule, string>([[root, "root"]]);
  const print = (part: Part): string => {
    return typeof part === "string" ? part : names.getOrInsert(part, `r${names.size}`);
  };
  // Rules that begin an alternative: if one is plain text, xgrammar inlines it, which may create a shared prefix.
  const leading = new Set(
    [...all].flatMap(({ choices }) => (choices.length > 1 ? choices.map(([first]) => first) : [])),
  );
  for (const part of leading) {
    if (typeof part === "object") for (const [first] of part.choices) leading.add(first);
  }
  let text = 'end ::= ""\n';
  for (const [rule, name] of names) {
    const choices = rule.choices
      .filter((choice) => endsIn(ending, choice))
      .map((choice) => choice.map(print));
    const isText = rule.choices.flat().every((part) => typeof part === "string");
    const own = isText && leading.has(rule) ? choices.map((choice) => [...choice, "end"]) : choices;
    const follow = rule.follow === undefined ? "" : ` (= ${rule.follow})`;
    text += alternativesRule(name, own, follow);
  }
  return text;
}

/** Returns the productive rules, those that derive some text. */
function endingRules(rules: readonly Rule[]): Set<Rule> {
  const ending = new Set<Rule>();
  for (let before = -1; before < ending.size; ) {
    before = ending.size;
    for (const rule of rules.toReversed()) {
      if (!ending.has(rule) && rule.choices.some((choice) => endsIn(ending, choice))) {
        ending.add(rule);
      }
    }
  }
  return ending;
}

function endsIn(ending: ReadonlySet<Rule>, choice: readonly Part[]): boolean {
  return choice.every((part) => typeof part === "string" || ending.has(part));
}

export function intersect(a: readonly Range[], b: readonly Range[]): Range[] {
  return a.flatMap(([from, to]) =>
    b
      .map(([first, last]): Range => [Math.max(from, first), Math.min(to, last)])
      .filter(([first, last]) => first <= last),
  );
}

/** Returns the ranges of all code points outside the given ranges. */
export function complement(ranges: readonly Range[]): Range[] {
  const result: Range[] = [];
  let next = 0;
  for (const [from, to] of ranges.toSorted(([a], [b]) => a - b)) {
    if (from > next) result.push([next, from - 1]);
    next = Math.max(next, to + 1);
  }
  if (next <= MAX_CODE_POINT) result.push([next, MAX_CODE_POINT]);
  return result;
}

/** Returns the UTF-8 encodings of code points beyond ASCII: sequences of byte ranges, all combinations included. */
export function utf8(from: number, to: number): Range[][] {
  for (const last of [0x7ff, 0xffff]) {
    if (from <= last && to > last) return [...utf8(from, last), ...utf8(last + 1, to)];
  }
  for (const bits of [6, 12, 18]) {
    const low = (1 << bits) - 1;
    if ((from & ~low) === (to & ~low)) break;
    if ((from & low) !== 0) return [...utf8(from, from | low), ...utf8((from | low) + 1, to)];
    if ((to & low) !== low) return [...utf8(from, (to & ~low) - 1), ...utf8(to & ~low, to)];
  }
  const [first, last] = [from, to].map((code) => Buffer.from(String.fromCodePoint(code)));
  return [[...first!].map((byte, i): Range => [byte, last![i]!])];
}
