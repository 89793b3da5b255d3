// Building blocks of the formats' grammars: xgrammar's structural tags.
import type { StructuralTagFormat, TagFormat, TagsWithSeparatorFormat } from "@mlc-ai/web-xgrammar";
import type { GrammarOptions, Tool } from "./format.ts";
import { isName } from "./literal-value.ts";

type Schema = Record<string, unknown>;

export const nothing: StructuralTagFormat = { type: "grammar", grammar: 'root ::= ""' };

/** Returns the grammar of exactly one of these texts. */
export function oneOf(texts: readonly string[]): StructuralTagFormat {
  return {
    type: "or",
    elements: texts.map((value) => (value === "" ? nothing : { type: "const_string", value })),
  };
}

/** Returns the values that a schema lists by const or enum; undefined if it lists none. */
export function choicesOf(schema: Schema): unknown[] | undefined {
  if ("const" in schema) return [schema.const];
  return Array.isArray(schema.enum) && schema.enum.length > 0 ? schema.enum : undefined;
}

export function optional(format: StructuralTagFormat): StructuralTagFormat {
  return { type: "or", elements: [nothing, format] };
}

/** Returns the grammar of arguments as a JSON object. */
export function jsonArguments({ parameters }: Tool): StructuralTagFormat {
  return { type: "json_schema", json_schema: { type: "object", ...parameters } };
}

/** Returns the grammar of `{"name": …, "arguments": {…}}` between two texts. */
export function jsonTag(
  tool: Tool,
  { before = "", key = "arguments", after = "" }: { before?: string; key?: string; after?: string },
): TagFormat {
  const begin = `${before}{"name": ${JSON.stringify(tool.name)}, "${key}": `;
  return { type: "tag", begin, content: jsonArguments(tool), end: `}${after}` };
}

/** Returns the grammar of a sequence of calls. Every call starts with `trigger`, which text cannot contain. */
export function callSequence(
  tags: TagFormat[],
  { trigger, separator }: { trigger: string | undefined; separator: string },
  { required, parallel }: GrammarOptions,
): StructuralTagFormat | undefined {
  if (tags.length === 0) return undefined;
  if (required) return separated(tags, separator, parallel);
  if (trigger === undefined) return undefined;
  return { type: "triggered_tags", triggers: [trigger], tags, stop_after_first: !parallel };
}

/** Returns the grammar of adjoining calls. xgrammar needs a separator: the calls' common start (`trigger`) serves. */
export function adjoiningCalls(
  tags: TagFormat[],
  trigger: string,
  options: GrammarOptions,
): StructuralTagFormat | undefined {
  if (!options.required) return callSequence(tags, { trigger, separator: "" }, options);
  if (tags.length === 0) return undefined;
  const rest = tags.map((tag) => ({ ...tag, begin: tag.begin.slice(trigger.length) }));
  return {
    type: "sequence",
    elements: [
      { type: "const_string", value: trigger },
      separated(rest, trigger, options.parallel),
    ],
  };
}

/** Returns the grammar of a list of calls that ends the message. The list starts with `trigger`. */
export function callList(
  tags: TagFormat[],
  list: { trigger: string | undefined; begin: string; separator: string; end: string },
  { required, parallel }: GrammarOptions,
): StructuralTagFormat | undefined {
  if (tags.length === 0) return undefined;
  const { trigger, begin, separator, end } = list;
  const tag: TagFormat = { type: "tag", begin, content: separated(tags, separator, parallel), end };
  if (required) return tag;
  if (trigger === undefined) return undefined;
  return { type: "triggered_tags", triggers: [trigger], tags: [tag], stop_after_first: true };
}

export function separated(
  tags: TagFormat[],
  separator: string,
  several: boolean,
): TagsWithSeparatorFormat {
  return {
    type: "tags_with_separator",
    tags,
    separator,
    at_least_one: true,
    stop_after_first: !several,
  };
}

/** Returns the grammar of properties with a separator: all required ones in order, then any of the others. */
export function members(
  schema: Schema,
  separator: string,
  member: (key: string) => TagFormat,
): StructuralTagFormat {
  const { required, others } = propertiesOf(schema);
  if (required.length + others.length === 0) return nothing;
  if (required.length === 0) {
    return { ...separated(others.map(member), separator, true), at_least_one: false };
  }
  const after = (key: string): TagFormat => {
    const tag = member(key);
    return { ...tag, begin: separator + tag.begin };
  };
  const [first, ...rest] = required;
  return {
    type: "sequence",
    elements: [member(first!), ...rest.map(after), ...others.map((key) => optional(after(key)))],
  };
}

/** Returns the names of a schema's properties. */
export function propertiesOf(schema: Schema): { required: string[]; others: string[] } {
  const keys = Object.keys(isSchema(schema.properties) ? schema.properties : {});
  const isRequired = (key: string) =>
    Array.isArray(schema.required) && schema.required.includes(key);
  return { required: keys.filter(isRequired), others: keys.filter((key) => !isRequired(key)) };
}

/** Whether every format's parser can read the names of an object's properties. */
export function hasPlainNames({ properties, items }: Schema): boolean {
  const isPlain = (schema: unknown) => !isSchema(schema) || hasPlainNames(schema);
  const entries = Object.entries(isSchema(properties) ? properties : {});
  return isPlain(items) && entries.every(([name, each]) => isName(name) && isPlain(each));
}

/** Returns a property's schema, with the definitions that it may refer to. */
export function propertySchema(schema: Schema, key: string): Schema {
  const { properties, $defs, definitions } = schema;
  const property = isSchema(properties) ? properties[key] : undefined;
  return {
    ...(isSchema(property) && property),
    ...($defs !== undefined && { $defs }),
    ...(definitions !== undefined && { definitions }),
  };
}

export function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
