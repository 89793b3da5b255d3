// JSON Schema's keywords: which ones constrain values, which types they apply to, and when two values are equal.

export type Schema = Readonly<Record<string, unknown>>;
export type Type = keyof typeof keywordsOf;

/** The keywords that constrain values of one type. */
export const keywordsOf = {
  null: [],
  boolean: [],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
  string: ["minLength", "maxLength", "pattern", "format"],
  array: ["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"],
  object: [
    ...["properties", "required", "additionalProperties", "unevaluatedProperties"],
    ...["patternProperties", "propertyNames", "minProperties", "maxProperties"],
  ],
} as const;
export const types = Object.keys(keywordsOf) as Type[];

/** Assertions that the grammar cannot enforce. */
export const unsupported = new Set([
  ...["not", "if", "dependentRequired", "dependentSchemas", "dependencies", "additionalItems"],
  ...["contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef"],
]);

/** All keywords that constrain values. Every other keyword is an annotation, which constrains nothing. */
const assertions = new Set<string>([
  ...["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$id"],
  ...Object.values(keywordsOf).flat(),
  ...unsupported,
]);

export const isAssertion = (key: string) => assertions.has(key);
export const asserts = (schema: Schema) => Object.keys(schema).some(isAssertion);

export const isObject = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns an object's members as a Map: clients choose the names, and an object would also find "constructor". */
export function membersOf(value: unknown): Map<string, unknown> {
  return new Map(typeof value === "object" && value !== null ? Object.entries(value) : []);
}

export function without(schema: Schema, ...keys: string[]): Schema {
  return Object.fromEntries(Object.entries(schema).filter(([key]) => !keys.includes(key)));
}

/** Returns a text of the value that is the same for all values that are equal in JSON Schema. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.entries(value).map(
    ([key, each]) => `${JSON.stringify(key)}:${canonical(each)}`,
  );
  return `{${members.toSorted()}}`;
}

export function typeOf(value: unknown): Type {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : (typeof value as Type);
}
