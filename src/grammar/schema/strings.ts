// Rules of JSON strings: with bounds on the length, a pattern or a format, and keys other than given names.
import { byteClass, literal } from "../pattern/alternatives.ts";
import type { Automaton } from "../pattern/automaton.ts";
import { both, costOf, PatternError, readPattern, withLength } from "../pattern/pattern.ts";
import {
  complement,
  intersect,
  MAX_CODE_POINT,
  type Part,
  type Range,
  type Rule,
  utf8,
} from "../pattern/rules.ts";
import { formatPatterns, unsupportedFormats } from "./formats.ts";
import type { Schema } from "./keywords.ts";
import type { SchemaReader } from "./reader.ts";
import type { Counts, RuleBook } from "./rule-book.ts";

const QUOTE = '"\\""';
/** Lookahead for the characters that may follow a string in a document. */
const AFTER_STRING = "[,:}\\x5d]";
/** Lookahead that never matches: excludes tokens that extend beyond the rule. */
const NOTHING = '"\\x01"';

/** Maximum characters of a token within a string of bounded length. */
const WINDOW = 16;
/** Prefix length up to which keys are compared with property names; keys with a longer common prefix are excluded. */
const MAX_PREFIX = 8;

/** Characters that may be unescaped in a string. */
const plain: readonly Range[] = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0xd7ff],
  [0xe000, MAX_CODE_POINT],
];
const escapes: readonly (readonly [number, string])[] = [
  [0x22, '\\"'],
  [0x5c, "\\\\"],
  [0x08, "\\b"],
  [0x09, "\\t"],
  [0x0a, "\\n"],
  [0x0c, "\\f"],
  [0x0d, "\\r"],
];

const windowKey = (min: number, extra: number) => `at least ${min} and ${extra} more`;

export class StringRules {
  readonly #reader: SchemaReader;
  readonly #book: RuleBook;

  constructor(reader: SchemaReader, book: RuleBook) {
    this.#reader = reader;
    this.#book = book;
  }

  choices(schema: Schema, at: string): Part[][] {
    return [[QUOTE, this.#rest(schema, at)]];
  }

  /** Returns the rule of keys other than these names. Keys have no escapes, so that each has only one spelling. */
  keyExcept(names: readonly string[]): Rule {
    if (names.length === 0) return this.#book.rule("string", () => this.choices({}, ""));
    const codes = names.map((name) => Array.from(name, (char) => char.codePointAt(0)!));
    return this.#book.ruleOf([[QUOTE, this.#keyRestExcept(codes, 0)]]);
  }

  /** Writes the rest of a key: single characters, which compile fast, while it may still equal an excluded name. */
  #keyRestExcept(names: readonly (readonly number[])[], depth: number): Rule {
    return this.#book.rule(names, () => {
      const rest: Rule = this.#book.rule(
        "key",
        () => [[QUOTE], ...this.#chars(plain, [rest])],
        AFTER_STRING,
      );
      const longer = names.filter((name) => name.length > 0);
      const byFirst = Map.groupBy(longer, ([code]) => code!);
      const firsts = [...byFirst.keys()].map((code): Range => [code, code]);
      const others = intersect(plain, complement(firsts));
      const other = this.#book.rule(`key ${firsts}`, () => this.#chars(others, []), NOTHING);
      const choices: Part[][] = [[other, rest]];
      if (longer.length === names.length) choices.push([QUOTE]);
      if (depth === MAX_PREFIX) return choices;
      for (const [code, some] of byFirst) {
        const tails = some.map((name) => name.slice(1));
        const next = this.#keyRestExcept(tails, depth + 1);
        choices.push(...this.#chars([[code, code]], [next]));
      }
      return choices;
    });
  }

  /** Writes a character in these ranges, followed by `next`. */
  #chars(ranges: readonly Range[], next: readonly Part[]): Part[][] {
    const shown = intersect(ranges, plain);
    const ascii = intersect(shown, [[0, 0x7f]]);
    const choices: Part[][] = ascii.length > 0 ? [[byteClass(ascii), ...next]] : [];
    for (const [code, escape] of escapes) {
      if (intersect(ranges, [[code, code]]).length > 0) choices.push([literal(escape), ...next]);
    }
    for (const [from, to] of intersect(shown, [[0x80, MAX_CODE_POINT]])) {
      for (const bytes of utf8(from, to)) choices.push([...this.#bytes(bytes), ...next]);
    }
    return choices;
  }

  /** Writes a character's bytes. Trailing bytes that may have any value become a rule shared by all characters. */
  #bytes(bytes: readonly Range[]): Part[] {
    const last = bytes.findLastIndex(([from, to]) => from !== 0x80 || to !== 0xbf);
    const head = bytes.slice(0, last + 1).map((range) => byteClass([range]));
    const tail = bytes.length - head.length;
    if (tail === 0) return head;
    return [...head, this.#book.rule(`bytes ${tail}`, () => [Array(tail).fill("[\\x80-\\xbf]")])];
  }

  /** Writes any character in any spelling, followed by `next`. */
  #anyChar(next: readonly Part[]): Part[][] {
    const digit = "[0-9a-fA-F]";
    // Surrogate halves are excluded, so that every escape is one character.
    const escape = this.#book.rule("escape", () => [
      ['["\\x5c/bfnrt]'],
      ['"u"', "[0-9a-cA-CefEF]", digit, digit, digit],
      ['"u"', "[dD]", "[0-7]", digit, digit],
    ]);
    return [...this.#chars(plain, next), [literal("\\"), escape, ...next]];
  }

  /** Returns the rule of the rest of a string after its opening quote. */
  #rest(schema: Schema, at: string): Rule {
    const { pattern, format } = schema;
    const counts = this.#reader.counts(schema, "Length", at);
    const key = `string ${JSON.stringify([pattern, format, counts.min, counts.max])}`;
    return this.#book.rule(key, () => {
      const language = this.#language(schema, at);
      const rest = language
        ? this.#automatonRest(this.#bounded(language, counts, at), at)
        : this.#countedRest(counts, at);
      return [[rest]];
    });
  }

  /** Returns the texts that pattern and format allow; undefined if neither constrains them. */
  #language({ pattern, format }: Schema, at: string): Automaton | undefined {
    let language: Automaton | undefined;
    const add = (keyword: string, source: unknown) => {
      try {
        if (typeof source !== "string") throw new PatternError("must be a regular expression");
        const read = readPattern(source, this.#book.patternWork);
        language = language ? both(language, read, this.#book.patternWork) : read;
      } catch (error) {
        if (!(error instanceof PatternError)) throw error;
        this.#book.refuse(keyword, at, error.message);
      }
    };
    if (unsupportedFormats.has(format)) this.#book.refuse("format", at, "cannot be enforced");
    if (formatPatterns.has(format)) add("format", formatPatterns.get(format));
    if (pattern !== undefined) add("pattern", pattern);
    return language;
  }

  #bounded(language: Automaton, { min, max }: Counts, at: string): Automaton {
    if (min === 0 && max === Infinity) return language;
    try {
      return withLength(language, min, max);
    } catch (error) {
      if (!(error instanceof PatternError)) throw error;
      const key = max < Infinity ? "maxLength" : "minLength";
      this.#book.refuse(key, at, "cannot be enforced together with this pattern or format");
      return language;
    }
  }

  #automatonRest(automaton: Automaton, at: string): Rule {
    if (automaton.length === 0) return this.#book.never();
    if (!this.#book.spend(costOf(automaton), "pattern", at)) return this.#anyRest();
    const rules = automaton.map(() => this.#book.ruleOf([], AFTER_STRING));
    for (const [i, { accepts, edges }] of automaton.entries()) {
      const { choices } = rules[i]!;
      if (accepts) choices.push([QUOTE]);
      for (const [target, some] of Map.groupBy(edges, (edge) => edge.target)) {
        const ranges = some.map(({ range }) => range);
        choices.push(...this.#chars(ranges, [rules[target]!]));
      }
    }
    return rules[0]!;
  }

  #anyRest(): Rule {
    const rest: Rule = this.#book.rule(
      "rest",
      () => [[QUOTE], ...this.#anyChar([rest])],
      AFTER_STRING,
    );
    return rest;
  }

  /**
   * Returns the rest of a string with counted characters. Rules in which most tokens can begin are slow to compile,
   * so there are few: one rule counts single characters, and from each position a window of a few rules offers longer
   * tokens, up to the end of the string if that is near.
   */
  #countedRest({ min, max }: Counts, at: string): Rule {
    if (min > max) return this.#book.never();
    const extra = max === Infinity ? Infinity : Math.min(max - min, WINDOW);
    const windows = [
      ...Array.from({ length: Math.min(min, WINDOW) }, (_, i) => windowKey(i + 1, extra)),
      ...Array.from({ length: extra === Infinity ? 0 : extra }, (_, i) => windowKey(0, i + 1)),
      ...Array.from({ length: min > WINDOW ? WINDOW : 0 }, (_, i) => `a run of ${i + 1}`),
    ];
    const keyword = max < Infinity ? "maxLength" : "minLength";
    if (!this.#book.spendOnce(windows, keyword, at)) return this.#anyRest();
    return this.#counted(min, max);
  }

  /** Returns the rule of `min` to `max` characters and the closing quote. */
  #counted(min: number, max: number): Rule {
    const one = this.#book.rule("character", () => this.#anyChar([]), NOTHING);
    const isNear = max === Infinity || max - min <= WINDOW;
    if (min <= WINDOW && isNear) return this.#window(min, max - min);
    return this.#book.rule(`from ${min} to ${max}`, () => {
      if (min === 0) return [[this.#book.upTo(one, max - WINDOW), this.#window(0, WINDOW)]];
      const next = [one, this.#counted(min - 1, max - 1)];
      if (min <= WINDOW) return [[this.#window(min, WINDOW)], next];
      return [[this.#run(WINDOW), this.#counted(min - WINDOW, max - WINDOW)], next];
    });
  }

  /** Returns the rule of at least `min` characters, at most `extra` more, and the closing quote. */
  #window(min: number, extra: number): Rule {
    if (min === 0 && extra === Infinity) return this.#anyRest();
    const choices = (): Part[][] => {
      if (min > 0) return this.#anyChar([this.#window(min - 1, extra)]);
      return extra === 0 ? [[QUOTE]] : [[QUOTE], ...this.#anyChar([this.#window(0, extra - 1)])];
    };
    return this.#book.rule(windowKey(min, extra), choices, AFTER_STRING);
  }

  /** Returns the rule of exactly `count` characters, without the closing quote. */
  #run(count: number): Rule {
    const next = count === 1 ? [] : [this.#run(count - 1)];
    return this.#book.rule(`a run of ${count}`, () => this.#anyChar(next), NOTHING);
  }
}
