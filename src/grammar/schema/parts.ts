// Shared dependencies of the rules of arrays and objects.
import type { Rule } from "../pattern/rules.ts";
import type { SchemaReader } from "./reader.ts";
import type { RuleBook } from "./rule-book.ts";
import type { StringRules } from "./strings.ts";

export type SchemaParts = {
  book: RuleBook;
  reader: SchemaReader;
  strings: StringRules;
  /** Returns the rule that matches every value that a schema allows. */
  value(schema: unknown, at: string): Rule;
};
