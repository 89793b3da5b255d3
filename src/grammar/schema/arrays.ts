// Rules of JSON arrays: items by position, then any number of items of one schema.
import type { Part } from "../pattern/rules.ts";
import type { Schema } from "./keywords.ts";
import type { SchemaParts } from "./parts.ts";

export function arrayChoices(
  { book, reader, value }: SchemaParts,
  schema: Schema,
  at: string,
): Part[][] {
  const { min, max } = reader.counts(schema, "Items", at);
  if (min > max) return [];
  if (schema.uniqueItems === true && max > 1) {
    book.refuse("uniqueItems", at, "cannot be enforced");
  }
  const isTuple = Array.isArray(schema.items);
  if (isTuple) book.refuse("items", at, "must be one schema; use prefixItems");
  const prefix = reader.list(schema, "prefixItems", at).slice(0, max);
  const first = prefix.flatMap((each, i) => {
    const rule = value(each, `${at}/prefixItems/${i}`);
    return i === 0 ? [rule] : ['", "', rule];
  });
  const count = prefix.length;
  // Default schema of the items after prefixItems: false (no items) if prefixItems is set and satisfies minItems.
  const unsaid = count === 0 || min > count;
  const rest = isTuple ? true : (schema.items ?? schema.unevaluatedItems ?? unsaid);
  const item = value(rest, `${at}/items`);
  const more = (named: number) =>
    book.times(book.ruleOf([['", "', item]]), { min: Math.max(min - named, 0), max: max - named });
  if (count > 0) return [['"["', ...first, ...more(count), '"]"']];
  const empty: Part[][] = min === 0 ? [['"[]"']] : [];
  return max === 0 ? empty : [...empty, ['"["', item, ...more(1), '"]"']];
}
