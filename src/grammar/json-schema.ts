// Converts a JSON schema into a grammar. Every text of the grammar is valid under the schema: the grammar is exact or
// narrower (properties come in order, numbers have at most 15 digits), and a keyword that it cannot enforce is reported
// as a fault by name. xgrammar's own conversion is not used: it ignores keywords that it does not know, and handles
// some of the others incorrectly.
import { type Part, printRules, type Rule } from "./pattern/rules.ts";
import { arrayChoices } from "./schema/arrays.ts";
import {
  asserts,
  isAssertion,
  isObject,
  type Schema,
  type Type,
  types,
  unsupported,
  without,
} from "./schema/keywords.ts";
import { numberChoices } from "./schema/numbers.ts";
import { objectChoices } from "./schema/objects.ts";
import { Overlap } from "./schema/overlap.ts";
import type { SchemaParts } from "./schema/parts.ts";
import { SchemaReader } from "./schema/reader.ts";
import { faultOf, RuleBook, SchemaError, type SchemaFault } from "./schema/rule-book.ts";
import { StringRules } from "./schema/strings.ts";

export type SchemaGrammar = {
  grammar: string;
  /** First keyword that the grammar does not enforce. Keywords after it are still enforced where possible. */
  fault: SchemaFault | undefined;
  /** Estimated compile cost; 1 is a costly rule: 10 to 30 ms of compiling for a vocabulary of 49,000 tokens. */
  cost: number;
};

/** Converts a schema to a grammar. `maxCost`: the unspent cost budget of the grammars that are compiled together. */
export function schemaGrammar(schema: unknown, maxCost: number = MAX_COST): SchemaGrammar {
  try {
    checkSize(schema);
    return new SchemaWriter(schema, maxCost).write();
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error;
    const isOfObjects = isObject(schema) && schema.type === "object";
    const any = new SchemaWriter(isOfObjects ? { type: "object" } : true, maxCost).write();
    return { ...any, fault: error.fault };
  }
}

export function schemaFault(schema: unknown): SchemaFault | undefined {
  return schemaGrammar(schema).fault;
}

const MAX_DEPTH = 64;
const MAX_NODES = 10_000;
/** Maximum total cost of the rules. A rule costs the fraction of the vocabulary's tokens that can start at it. */
const MAX_COST = 64;

/** Throws unless recursion over the schema cannot overflow the stack, and every number can be written as JSON. */
function checkSize(schema: unknown): void {
  const pending: { value: unknown; depth: number }[] = [{ value: schema, depth: 0 }];
  for (let nodes = 0; nodes < pending.length; nodes++) {
    const { value, depth } = pending[nodes]!;
    if (depth > MAX_DEPTH) throw new SchemaError(faultOf("schema", "", "is nested too deep"));
    if (nodes > MAX_NODES) throw new SchemaError(faultOf("schema", "", "has too many parts"));
    if (value === Infinity || value === -Infinity) {
      throw new SchemaError(faultOf("schema", "", "has a number that is too large"));
    }
    if (typeof value !== "object" || value === null) continue;
    for (const part of Object.values(value)) pending.push({ value: part, depth: depth + 1 });
  }
}

/** Writes the grammar rules of a schema; the rules of each JSON type are in a file of their own. */
class SchemaWriter {
  readonly #schema: unknown;
  readonly #book: RuleBook;
  readonly #reader: SchemaReader;
  readonly #overlap: Overlap;
  readonly #parts: SchemaParts;

  constructor(schema: unknown, maxCost: number) {
    const book = new RuleBook(maxCost);
    const reader = new SchemaReader(schema, book);
    const strings = new StringRules(reader, book);
    this.#schema = schema;
    this.#book = book;
    this.#reader = reader;
    this.#overlap = new Overlap(reader, book);
    this.#parts = { book, reader, strings, value: (part, at) => this.#value(part, at) };
  }

  write(): SchemaGrammar {
    // The schema gets its own rule, so that references do not lead to the root rule, which ends the whole text.
    const root: Rule = { choices: [[this.#value(this.#schema, "")]] };
    this.#book.finish();
    const { fault, cost } = this.#book;
    const grammar = printRules(root);
    if (grammar !== undefined) return { grammar, fault, cost };
    throw new SchemaError(fault ?? faultOf("schema", "", "allows no document"));
  }

  #value(schema: unknown, at: string): Rule {
    const target = this.#reader.target(schema, at);
    if (target === false) return this.#book.never();
    if (target === true || (isObject(target) && !asserts(target))) return this.#any();
    if (isObject(target)) return this.#book.rule(target, () => this.#choices(target, at));
    this.#book.refuse("schema", at, "must be an object or a boolean");
    return this.#any();
  }

  #any(): Rule {
    return this.#book.rule("any", () => types.flatMap((type) => this.#typeChoices(type, {}, "")));
  }

  #choices(schema: Schema, at: string): Part[][] {
    if ("allOf" in schema) {
      const parts = this.#reader.list(schema, "allOf", at);
      return [[this.#value(this.#reader.merge(without(schema, "allOf"), parts, at), at)]];
    }
    for (const key of unsupported) {
      if (key in schema) this.#book.refuse(key, at, "cannot be enforced");
    }
    if ("$id" in schema && at !== "") this.#book.refuse("$id", at, "is known at the root alone");
    const union = ["anyOf", "oneOf"].find((key) => key in schema);
    if (union !== undefined) return this.#unionChoices(schema, union, at);
    if ("enum" in schema || "const" in schema) return this.#enumChoices(schema, at);
    return this.#reader.types(schema, at).flatMap((type) => this.#typeChoices(type, schema, at));
  }

  #unionChoices(schema: Schema, key: string, at: string): Part[][] {
    const rest = without(schema, key);
    const branches = this.#reader
      .list(schema, key, at)
      .map((branch) => (asserts(rest) ? this.#reader.merge(rest, [branch], at) : branch));
    const overlaps = (branch: unknown, i: number) =>
      branches.slice(i + 1).some((other) => !this.#overlap.areDisjoint(branch, other, at));
    if (key === "oneOf" && branches.some(overlaps)) {
      this.#book.refuse(key, at, "has branches that a value may match at once; use anyOf");
    }
    return branches.map((branch, i) => [this.#value(branch, `${at}/${key}/${i}`)]);
  }

  #enumChoices(schema: Schema, at: string): Part[][] {
    const key = "enum" in schema ? "enum" : "const";
    const others = Object.keys(without(schema, "type", "enum", "const", "$id", ...unsupported));
    for (const other of others.filter(isAssertion)) {
      this.#book.refuse(other, at, `cannot be enforced together with ${key}`);
    }
    return this.#reader
      .values(schema, at)
      .map((value) => [this.#book.literal(JSON.stringify(value), key, at)]);
  }

  #typeChoices(type: Type, schema: Schema, at: string): Part[][] {
    switch (type) {
      case "null":
        return [['"null"']];
      case "boolean":
        return [['"true"'], ['"false"']];
      case "number":
        return numberChoices(this.#book, schema, at);
      case "string":
        return this.#parts.strings.choices(schema, at);
      case "array":
        return arrayChoices(this.#parts, schema, at);
      case "object":
        return objectChoices(this.#parts, schema, at);
    }
  }
}
