// Rules of JSON objects: the named properties in order, then any number of others.
import type { Part, Rule } from "../pattern/rules.ts";
import { asserts, isAssertion, isObject, keywordsOf, type Schema, without } from "./keywords.ts";
import type { SchemaParts } from "./parts.ts";

/** `others`: schema for the values of unnamed properties, false if none may exist; `key`: rule for their names. */
type Properties = {
  names: ReadonlyMap<string, unknown>;
  required: ReadonlySet<string>;
  others: unknown;
  key: Rule;
};

export function objectChoices(parts: SchemaParts, schema: Schema, at: string): Part[][] {
  const { book, reader, value } = parts;
  const { names, required, others, key } = propertiesOf(parts, schema, at);
  const { min, max } = reader.counts(schema, "Properties", at);
  if (required.size > max || min > max) return [];
  // If the required properties alone reach maxProperties, the optional ones are dropped.
  const listed = [...names].filter(([name]) => max > required.size || required.has(name));
  if (listed.length > max) book.refuse("maxProperties", at, "cannot be enforced with so many");
  const isFull = min === names.size && others === false;
  if (min > Math.max(required.size, 1) && !isFull) {
    book.refuse("minProperties", at, "cannot be enforced");
  }
  const room = Math.max(max - listed.length, 0);
  const other: Part[] = [key, '": "', value(others, `${at}/additionalProperties`)];
  const more = book.ruleOf([['", "', ...other]]);

  // Builds the object's rule from the last property to the first. `after`: the rest of an object that has a member
  // already; `first`: the rest of an object without members.
  let after: Part[] = [book.upTo(more, room), '"}"'];
  const alone: Part[][] = min === 0 ? [['"}"']] : [];
  if (room > 0) alone.push([...other, book.upTo(more, room - 1), '"}"']);
  let first: Part[] = [book.ruleOf(alone)];
  const members = listed.map(([name, property]) => ({
    isRequired: required.has(name) || isFull,
    member: [
      book.literal(`${JSON.stringify(name)}: `, "properties", at),
      value(property, `${at}/properties/${pointerPart(name)}`),
    ],
  }));
  for (const { isRequired, member } of members.toReversed()) {
    if (isRequired) {
      first = [...member, ...after];
      after = ['", "', ...member, ...after];
      // Long sequences are split: for each part of a sequence, xgrammar copies all parts that follow.
      if (after.length > 20) after = [book.ruleOf([after])];
    } else {
      const [shared, rest] = [book.ruleOf([member]), book.ruleOf([after])];
      first = [book.ruleOf([[shared, rest], first])];
      after = [book.ruleOf([['", "', shared, rest], [rest]])];
    }
  }
  return [['"{"', ...first]];
}

function propertiesOf(parts: SchemaParts, schema: Schema, at: string): Properties {
  const { book, reader, strings } = parts;
  const properties = schema.properties ?? {};
  if (!isObject(properties)) book.refuse("properties", at, "must be an object");
  const names = new Map(isObject(properties) ? Object.entries(properties) : []);
  const list = reader.list(schema, "required", at);
  const required = new Set(list.filter((name) => typeof name === "string"));
  if (!list.every((name) => typeof name === "string")) {
    book.refuse("required", at, "must be a list of names");
  }
  let others = schema.additionalProperties ?? schema.unevaluatedProperties;
  let limits = keyLimits(parts, schema, at);
  const [pattern, ...patterns] = Object.entries(schema.patternProperties ?? {});
  if (pattern) {
    const isAlone = names.size + required.size + patterns.length === 0 && !asserts(limits);
    if (isAlone && !others) [limits, others] = [{ pattern: pattern[0] }, pattern[1]];
    else book.refuse("patternProperties", at, "cannot be enforced beside others");
  }
  if ("enum" in limits || "const" in limits) {
    const listed = new Set(reader.values(limits, at));
    for (const name of names.keys()) if (!listed.has(name)) names.set(name, false);
    for (const name of listed) {
      if (typeof name === "string" && !names.has(name)) names.set(name, others ?? true);
    }
    [others, limits] = [false, {}];
  }
  for (const name of required) if (!names.has(name)) names.set(name, others ?? true);
  // Unnamed properties are forbidden if the schema names properties and does not mention others.
  others ??= names.size === 0 && schema.properties === undefined;
  const isLimited = asserts(limits);
  if (isLimited && names.size > 0) {
    book.refuse("propertyNames", at, "cannot be enforced beside properties");
  }
  if (others === false) return { names, required, others, key: book.never() };
  const key = isLimited
    ? book.ruleOf(strings.choices(limits, `${at}/propertyNames`))
    : strings.keyExcept([...names.keys()]);
  return { names, required, others, key };
}

/** Returns the constraints of propertyNames on keys. */
function keyLimits({ book, reader }: SchemaParts, schema: Schema, at: string): Schema {
  const keys = reader.target(schema.propertyNames ?? true, at);
  if (keys === true) return {};
  const limits = isObject(keys) ? without(keys, "type") : {};
  const known = ["enum", "const", ...keywordsOf.string];
  const isKnown = Object.keys(limits).every((key) => !isAssertion(key) || known.includes(key));
  const isOfStrings = isObject(keys) && [keys.type ?? "string"].flat().includes("string");
  if (isKnown && isOfStrings) return limits;
  book.refuse("propertyNames", at, "cannot be enforced");
  return {};
}

function pointerPart(name: string): string {
  return name.replaceAll("~", "~0").replaceAll("/", "~1");
}
