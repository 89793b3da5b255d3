// A JSON schema as a grammar. Every text of the grammar is a document that the schema allows: what is
// written here is exact or narrower (properties come in order, numbers have at most 15 digits), and what
// cannot be written is a fault that names the keyword. The engine's own reading of schemas is not used: it
// skips what it does not know, and gets wrong some of what it does.
import { byteClass, literal } from "./alternatives.ts";
import {
  type Automaton,
  both,
  costOf,
  MAX_PATTERN_STEPS,
  PatternError,
  readPattern,
  Work,
  withLength,
} from "./pattern.ts";
import {
  complement,
  intersect,
  MAX_CODE_POINT,
  type Part,
  printRules,
  type Range,
  type Rule,
  utf8,
} from "./rules.ts";

/** What keeps a schema from being enforced. */
export type SchemaFault = {
  keyword: string;
  /** Where in the schema, as a JSON pointer. */
  pointer: string;
  /** Both of these, and why, in words for whoever sent the schema. */
  message: string;
};

export type SchemaGrammar = {
  grammar: string;
  /** The first thing that the grammar does not hold a model to. It holds to what else it can. */
  fault: SchemaFault | undefined;
  /** Costly rules: each takes 10 to 30 ms to compile, for 49,000 tokens. */
  cost: number;
};

/** Grammars that are compiled together share what they may cost. */
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

/** Nothing of the schema can be enforced. */
class SchemaError extends Error {
  readonly fault: SchemaFault;

  constructor(fault: SchemaFault) {
    super(fault.message);
    this.fault = fault;
  }
}

const MAX_DEPTH = 64;
const MAX_NODES = 10_000;
/** Rules, and characters of names and values: both take their time to compile. */
const MAX_RULES = 3000;
const MAX_LITERALS = 50_000;
/** A rule costs as much as of a vocabulary may begin in it. */
const MAX_COST = 64;
/** Steps of comparing and merging schemas, and of reading patterns: some tens of milliseconds. */
const MAX_STEPS = 60_000;
/** More is never reached, and a model is not held to a larger minimum. */
const MAX_COUNT = 1_000_000;
const MAX_LEAST = 1000;
/** Digits of a number: more are not told apart, and a model may go on with them for ever. */
const DIGITS = 15;
/** Characters of a token that is offered in a string with bounds on its length. */
const WINDOW = 16;
/** What begins with so many characters of a property's name is no name of another property. */
const MAX_PREFIX = 8;

/** What comes after this need not fear for the stack, nor for numbers that JSON cannot write. */
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

function faultOf(keyword: string, pointer: string, why: string): SchemaFault {
  const short = pointer.length > 80 ? `${pointer.slice(0, 77)}...` : pointer;
  const where = short === "" ? "" : ` at ${short}`;
  return { keyword, pointer: short, message: `${keyword}${where} ${why}` };
}

type Schema = Readonly<Record<string, unknown>>;
type Type = keyof typeof ofType;

/** The keywords that say something about values of one type. */
const ofType = {
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
const types = Object.keys(ofType) as Type[];

const refused = new Set([
  ...["not", "if", "dependentRequired", "dependentSchemas", "dependencies", "additionalItems"],
  ...["contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef"],
]);

/** Whatever else a schema has does not limit what is valid. */
const assertions = new Set<string>([
  ...["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$id"],
  ...Object.values(ofType).flat(),
  ...refused,
]);

/** Keywords about what the same schema does not name. */
const scopes = [
  ["additionalProperties", "properties"],
  ["patternProperties", "properties"],
  ["propertyNames", "properties"],
  ["items", "prefixItems"],
] as const;

const isObject = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isAssertion = (key: string) => assertions.has(key);
const asserts = (schema: Schema) => Object.keys(schema).some(isAssertion);

function without(schema: Schema, ...keys: string[]): Schema {
  return Object.fromEntries(Object.entries(schema).filter(([key]) => !keys.includes(key)));
}

/** The same text for values that JSON Schema calls equal. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.entries(value).map(
    ([key, each]) => `${JSON.stringify(key)}:${canonical(each)}`,
  );
  return `{${members.toSorted()}}`;
}

function typeOf(value: unknown): Type {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : (typeof value as Type);
}

const QUOTE = '"\\""';
/** What comes after a string, wherever in a document it stands. */
const AFTER_STRING = "[,:}\\x5d]";
/** What never comes: no token is offered that reaches beyond the rule. */
const NOTHING = '"\\x01"';

const ANY_INTEGER = '("0" | "-"? [1-9] [0-9]{0,14})';
const ANY_NUMBER = '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [+-]? [0-9]{1,2})?';

/** Characters that stand for themselves in a string. */
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

type Counts = { min: number; max: number };
type Bound = { value: number; isStrict: boolean };
/** The properties with a name; and of the others the value, false for none, and the key. */
type Members = {
  names: ReadonlyMap<string, unknown>;
  required: ReadonlySet<string>;
  others: unknown;
  key: Rule;
};

class SchemaWriter {
  readonly #schema: unknown;
  readonly #maxCost: number;
  /** By the schema, or by a text that says what the rule is. */
  readonly #rules = new Map<unknown, Rule>();
  readonly #pending: (() => void)[] = [];
  readonly #merged = new Map<string, Schema>();
  readonly #ids = new Map<Rule, number>();
  /** The costly rules that are paid for. */
  readonly #paid = new Set<string>();
  readonly #patternWork = new Work(MAX_PATTERN_STEPS);
  #fault: SchemaFault | undefined;
  #cost = 0;
  #literals = 0;
  #steps = 0;

  constructor(schema: unknown, maxCost: number) {
    this.#schema = schema;
    this.#maxCost = maxCost;
  }

  write(): SchemaGrammar {
    // What is referred to from within is not the root, whose end is the end of the text.
    const root: Rule = { choices: [[this.#value(this.#schema, "")]] };
    for (let write = this.#pending.shift(); write; write = this.#pending.shift()) write();
    const grammar = printRules(root);
    if (grammar !== undefined) return { grammar, fault: this.#fault, cost: this.#cost };
    throw new SchemaError(this.#fault ?? faultOf("schema", "", "allows no document"));
  }

  #refuse(keyword: string, at: string, why: string): void {
    this.#fault ??= faultOf(keyword, at, why);
  }

  /** The rule that goes by this key. Its choices are asked for once, when all else is done. */
  #rule(key: unknown, choices: () => Part[][], follow?: string): Rule {
    const known = this.#rules.get(key);
    if (known) return known;
    const rule: Rule = follow === undefined ? { choices: [] } : { choices: [], follow };
    this.#rules.set(key, rule);
    this.#pending.push(() => rule.choices.push(...choices()));
    if (this.#rules.size <= MAX_RULES) return rule;
    throw new SchemaError(faultOf("schema", "", "comes to too many rules"));
  }

  /** A rule that nobody else asks for. */
  #ruleOf(choices: Part[][], follow?: string): Rule {
    return this.#rule(choices, () => choices, follow);
  }

  #never(): Rule {
    return this.#rule("never", () => []);
  }

  #literal(text: string, keyword: string, at: string): string {
    this.#literals += text.length;
    if (this.#literals <= MAX_LITERALS) return literal(text);
    throw new SchemaError(faultOf(keyword, at, "is too much text to enforce"));
  }

  #step(steps: number, keyword: string, at: string): void {
    this.#steps += steps;
    if (this.#steps <= MAX_STEPS) return;
    throw new SchemaError(faultOf(keyword, at, "takes too long to make out"));
  }

  /** Whether there is time enough to compile it. */
  #spend(cost: number, keyword: string, at: string): boolean {
    const isEnough = this.#cost + cost <= this.#maxCost;
    if (isEnough) this.#cost += cost;
    else this.#refuse(keyword, at, "is too large to enforce");
    return isEnough;
  }

  // Schemas

  #value(schema: unknown, at: string): Rule {
    const target = this.#target(schema, at);
    if (target === false) return this.#never();
    if (target === true || (isObject(target) && !asserts(target))) return this.#any();
    if (isObject(target)) return this.#rule(target, () => this.#schemaChoices(target, at));
    this.#refuse("schema", at, "must be an object or a boolean");
    return this.#any();
  }

  #any(): Rule {
    return this.#rule("any", () => types.flatMap((type) => this.#typeChoices(type, {}, "")));
  }

  /** What a schema refers to, together with what it says itself. */
  #target(schema: unknown, at: string, hops = 0): unknown {
    if (!isObject(schema) || !("$ref" in schema)) return schema;
    if (hops > MAX_DEPTH) {
      this.#refuse("$ref", at, "leads back to itself");
      return true;
    }
    const rest = without(schema, "$ref");
    const target = this.#target(this.#resolve(schema.$ref, at), at, hops + 1);
    return asserts(rest) ? this.#merge(rest, [target], at) : target;
  }

  #resolve(ref: unknown, at: string): unknown {
    if (typeof ref !== "string" || !/^#(\/|$)/.test(ref)) {
      this.#refuse("$ref", at, "must point into the schema itself, as #/$defs/name does");
      return true;
    }
    let target: unknown = this.#schema;
    for (const part of ref.split("/").slice(1)) {
      const name = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
      if (typeof target !== "object" || target === null || !Object.hasOwn(target, name)) {
        this.#refuse("$ref", at, "leads to nothing");
        return true;
      }
      target = (target as Schema)[name];
    }
    return target;
  }

  #schemaChoices(schema: Schema, at: string): Part[][] {
    if ("allOf" in schema) {
      const parts = this.#list(schema, "allOf", at);
      return [[this.#value(this.#merge(without(schema, "allOf"), parts, at), at)]];
    }
    for (const key of refused) if (key in schema) this.#refuse(key, at, "cannot be enforced");
    if ("$id" in schema && at !== "") this.#refuse("$id", at, "is known at the root alone");
    const union = ["anyOf", "oneOf"].find((key) => key in schema);
    if (union !== undefined) return this.#unionChoices(schema, union, at);
    if ("enum" in schema || "const" in schema) return this.#enumChoices(schema, at);
    return this.#typesOf(schema, at).flatMap((type) => this.#typeChoices(type, schema, at));
  }

  #list(schema: Schema, key: string, at: string): readonly unknown[] {
    const list = schema[key] ?? [];
    if (Array.isArray(list)) return list;
    this.#refuse(key, at, "must be a list");
    return [];
  }

  #unionChoices(schema: Schema, key: string, at: string): Part[][] {
    const rest = without(schema, key);
    const branches = this.#list(schema, key, at).map((branch) =>
      asserts(rest) ? this.#merge(rest, [branch], at) : branch,
    );
    const overlaps = (branch: unknown, i: number) =>
      branches.slice(i + 1).some((other) => !this.#areApart(branch, other, at));
    if (key === "oneOf" && branches.some(overlaps)) {
      this.#refuse(key, at, "has branches that a value may match at once; use anyOf");
    }
    return branches.map((branch, i) => [this.#value(branch, `${at}/${key}/${i}`)]);
  }

  #enumChoices(schema: Schema, at: string): Part[][] {
    const key = "enum" in schema ? "enum" : "const";
    const others = Object.keys(without(schema, "type", "enum", "const", "$id", ...refused));
    for (const other of others.filter(isAssertion)) {
      this.#refuse(other, at, `cannot be enforced together with ${key}`);
    }
    return this.#valuesOf(schema, at).map((value) => [
      this.#literal(JSON.stringify(value), key, at),
    ]);
  }

  /** The values of enum and const that are of the type as well. */
  #valuesOf(schema: Schema, at: string): unknown[] {
    const names = this.#typeNames(schema, at);
    const isOfType = (value: unknown) =>
      names === undefined ||
      names.includes(typeOf(value)) ||
      (names.includes("integer") && Number.isInteger(value));
    const list = "enum" in schema ? this.#list(schema, "enum", at) : [schema.const];
    const values = new Map(list.filter(isOfType).map((value) => [canonical(value), value]));
    const only = "const" in schema ? canonical(schema.const) : undefined;
    return [...values].flatMap(([text, value]) => ((only ?? text) === text ? [value] : []));
  }

  #typeNames(schema: Schema, at: string): string[] | undefined {
    if (!("type" in schema)) return undefined;
    const names: unknown[] = [schema.type].flat();
    const known = [...types, "integer"].filter((name) => names.includes(name));
    if (names.every((name) => known.some((each) => each === name))) return known;
    this.#refuse("type", at, "must name types of JSON");
    return undefined;
  }

  /** A schema without a type is taken for one of the types that its other keywords are about. */
  #typesOf(schema: Schema, at: string): Type[] {
    const names = this.#typeNames(schema, at);
    if (names) {
      const has = (type: Type) => names.includes(type === "number" ? "integer" : type);
      return types.filter((type) => names.includes(type) || has(type));
    }
    const meant = types.filter((type) => ofType[type].some((key) => key in schema));
    return meant.length > 0 ? meant : types;
  }

  #typeChoices(type: Type, schema: Schema, at: string): Part[][] {
    switch (type) {
      case "null":
        return [['"null"']];
      case "boolean":
        return [['"true"'], ['"false"']];
      case "number":
        return this.#numberChoices(schema, at);
      case "string":
        return [[QUOTE, this.#stringRest(schema, at)]];
      case "array":
        return this.#arrayChoices(schema, at);
      case "object":
        return this.#objectChoices(schema, at);
    }
  }

  // Several schemas for one value

  /** One schema that says what all of them say. */
  #merge(base: Schema, parts: readonly unknown[], at: string): unknown {
    let merged = base;
    for (const part of parts) {
      const target = this.#target(part, at);
      if (target === true) continue;
      if (!isObject(target)) return target;
      this.#checkScopes(merged, target, at);
      const said = Object.entries(target).filter(([key]) => isAssertion(key) && key !== "$id");
      const added = said.map(([key, value]) => [
        key,
        key in merged ? this.#mergeKeyword(key, merged[key], value, at) : value,
      ]);
      merged = { ...merged, ...Object.fromEntries(added) };
    }
    // Where a schema refers to itself, this comes to the same again and again.
    const text = JSON.stringify(merged);
    this.#step(1 + text.length / 100, "allOf", at);
    const known = this.#merged.get(text) ?? merged;
    this.#merged.set(text, known);
    return known;
  }

  #checkScopes(a: Schema, b: Schema, at: string): void {
    for (const key of ["unevaluatedProperties", "unevaluatedItems"]) {
      if (key in b && b[key] !== true) this.#refuse(key, at, "cannot be enforced within another");
    }
    for (const [key, named] of scopes) {
      const [ofA, ofB] = [a, b].map((schema) => new Set(Object.keys(schema[named] ?? {})));
      const isLost = (schema: Schema, own: Set<string>, other: Set<string>) =>
        key in schema && schema[key] !== true && !other.isSubsetOf(own);
      if (isLost(a, ofA!, ofB!) || isLost(b, ofB!, ofA!)) {
        this.#refuse(key, at, `cannot be enforced beside ${named} of another schema`);
      }
    }
  }

  #mergeKeyword(key: string, a: unknown, b: unknown, at: string): unknown {
    if (canonical(a) === canonical(b)) return a;
    if (key === "items") return { allOf: [a, b] };
    if (key === "properties" && isObject(a) && isObject(b)) {
      const added = Object.entries(b).map(([name, schema]) => [
        name,
        Object.hasOwn(a, name) ? { allOf: [a[name], schema] } : schema,
      ]);
      return Object.fromEntries([...Object.entries(a), ...added]);
    }
    if (key === "type") {
      const [some, others] = [[a].flat(), [b].flat()];
      const isIn = (list: unknown[]) => (name: unknown) =>
        list.includes(name) || (name === "integer" && list.includes("number"));
      return [...new Set([...some.filter(isIn(others)), ...others.filter(isIn(some))])];
    }
    if (Array.isArray(a) && Array.isArray(b)) {
      if (key === "required" || key === "allOf") return [...a, ...b];
      const texts = new Set(b.map(canonical));
      if (key === "enum") return a.filter((value) => texts.has(canonical(value)));
    }
    if (typeof a === "number" && typeof b === "number") {
      if (/^(exclusiveM|m)in/.test(key)) return Math.max(a, b);
      if (/^(exclusiveM|m)ax/.test(key)) return Math.min(a, b);
    }
    this.#refuse(key, at, "is said twice, in ways that cannot be combined");
    return a;
  }

  /** Whether it is plain that no value matches both. */
  #areApart(a: unknown, b: unknown, at: string, depth = 0): boolean {
    this.#step(1, "oneOf", at);
    const [x, y] = [this.#target(a, at), this.#target(b, at)];
    if (x === false || y === false) return true;
    if (!isObject(x) || !isObject(y) || depth > 4) return false;
    const branches = [x, y].map((schema) => schema.anyOf ?? schema.oneOf);
    const i = branches.findIndex(Array.isArray);
    if (i >= 0) {
      const other = i === 0 ? y : x;
      const apart = (branch: unknown) => this.#areApart(branch, other, at, depth + 1);
      return (branches[i] as unknown[]).every(apart);
    }
    const [some, others] = [this.#possible(x, at), this.#possible(y, at)];
    if (some.values && others.values) return some.values.isDisjointFrom(others.values);
    if (some.types.isDisjointFrom(others.types)) return true;
    const isObjects = [...some.types, ...others.types].every((type) => type === "object");
    return isObjects && this.#areApartObjects(x, y, at, depth);
  }

  #possible(schema: Schema, at: string): { types: Set<string>; values: Set<string> | undefined } {
    if ("enum" in schema || "const" in schema) {
      const values = this.#valuesOf(schema, at);
      this.#step(values.length, "oneOf", at);
      return { types: new Set(values.map(typeOf)), values: new Set(values.map(canonical)) };
    }
    const names = this.#typeNames(schema, at) ?? types;
    const wide = names.map((name) => (name === "integer" ? "number" : name));
    return { types: new Set(wide), values: undefined };
  }

  #areApartObjects(x: Schema, y: Schema, at: string, depth: number): boolean {
    const properties = (schema: Schema) => (isObject(schema.properties) ? schema.properties : {});
    const forbids = (schema: Schema, name: string) =>
      schema.additionalProperties === false &&
      !Object.hasOwn(properties(schema), name) &&
      !("patternProperties" in schema);
    const [some, others] = [x, y].map((schema) => new Set(this.#list(schema, "required", at)));
    this.#step(some!.size + others!.size, "oneOf", at);
    return [...some!.union(others!)].some((name) => {
      if (typeof name !== "string") return false;
      if (forbids(x, name) || forbids(y, name)) return true;
      if (!some!.has(name) || !others!.has(name)) return false;
      const [a, b] = [x, y].map((schema) =>
        Object.hasOwn(properties(schema), name) ? properties(schema)[name] : true,
      );
      return this.#areApart(a, b, at, depth + 1);
    });
  }

  // Arrays and objects

  #counts(schema: Schema, of: string, at: string): Counts {
    const [min = 0, max = Infinity] = [`min${of}`, `max${of}`].map((key) => {
      const count = schema[key];
      if (count === undefined || (Number.isInteger(count) && Number(count) >= 0)) {
        return count as number | undefined;
      }
      this.#refuse(key, at, "must be a whole number");
      return undefined;
    });
    if (min > MAX_LEAST) this.#refuse(`min${of}`, at, "is too large to enforce");
    return { min: min > MAX_LEAST ? 0 : min, max: max > MAX_COUNT ? Infinity : max };
  }

  /** A part so many times. Sixteen of them are a part as well, and so on: it takes few rules. */
  #times(part: Rule, { min, max }: Counts): Part[] {
    return [...this.#exactly(part, min), this.#upTo(part, max - min)];
  }

  #exactly(part: Rule, count: number): Part[] {
    const few = Array<Part>(count % 16).fill(part);
    return count < 16
      ? few
      : [...this.#exactly(this.#sixteen(part), Math.floor(count / 16)), ...few];
  }

  #upTo(part: Rule, count: number): Rule {
    return this.#rule(`${this.#idOf(part)} up to ${count}`, () => {
      if (count === 0) return [[]];
      if (count === Infinity || count < 16) return [[], [part, this.#upTo(part, count - 1)]];
      let [block, size] = [this.#sixteen(part), 16];
      while (size * 16 <= count) [block, size] = [this.#sixteen(block), size * 16];
      return [[this.#upTo(part, size - 1)], [block, this.#upTo(part, count - size)]];
    });
  }

  #sixteen(part: Rule): Rule {
    return this.#rule(`sixteen ${this.#idOf(part)}`, () => [Array(16).fill(part)]);
  }

  #idOf(rule: Rule): number {
    const id = this.#ids.get(rule) ?? this.#ids.size;
    this.#ids.set(rule, id);
    return id;
  }

  #arrayChoices(schema: Schema, at: string): Part[][] {
    const { min, max } = this.#counts(schema, "Items", at);
    if (min > max) return [];
    if (schema.uniqueItems === true && max > 1) {
      this.#refuse("uniqueItems", at, "cannot be enforced");
    }
    const isTuple = Array.isArray(schema.items);
    if (isTuple) this.#refuse("items", at, "must be one schema; use prefixItems");
    const prefix = this.#list(schema, "prefixItems", at).slice(0, max);
    const first = prefix.flatMap((each, i) => {
      const value = this.#value(each, `${at}/prefixItems/${i}`);
      return i === 0 ? [value] : ['", "', value];
    });
    const count = prefix.length;
    // A tuple that says nothing of more items has none, unless it must.
    const unsaid = count === 0 || min > count;
    const rest = isTuple ? true : (schema.items ?? schema.unevaluatedItems ?? unsaid);
    const item = this.#value(rest, `${at}/items`);
    const more = (named: number) =>
      this.#times(this.#ruleOf([['", "', item]]), {
        min: Math.max(min - named, 0),
        max: max - named,
      });
    if (count > 0) return [['"["', ...first, ...more(count), '"]"']];
    const empty: Part[][] = min === 0 ? [['"[]"']] : [];
    return max === 0 ? empty : [...empty, ['"["', item, ...more(1), '"]"']];
  }

  #objectChoices(schema: Schema, at: string): Part[][] {
    const { names, required, others, key } = this.#members(schema, at);
    const { min, max } = this.#counts(schema, "Properties", at);
    if (required.size > max || min > max) return [];
    // Where there is no room for others, the optional ones stay away.
    const listed = [...names].filter(([name]) => max > required.size || required.has(name));
    if (listed.length > max) this.#refuse("maxProperties", at, "cannot be enforced with so many");
    const isFull = min === names.size && others === false;
    if (min > Math.max(required.size, 1) && !isFull) {
      this.#refuse("minProperties", at, "cannot be enforced");
    }
    const room = Math.max(max - listed.length, 0);
    const other: Part[] = [key, '": "', this.#value(others, `${at}/additionalProperties`)];
    const more = this.#ruleOf([['", "', ...other]]);

    // From the last property to the first: what may follow, and what may come where nothing has yet.
    let after: Part[] = [this.#upTo(more, room), '"}"'];
    const alone: Part[][] = min === 0 ? [['"}"']] : [];
    if (room > 0) alone.push([...other, this.#upTo(more, room - 1), '"}"']);
    let first: Part[] = [this.#ruleOf(alone)];
    const members = listed.map(([name, property]) => ({
      isRequired: required.has(name) || isFull,
      member: [
        this.#literal(`${JSON.stringify(name)}: `, "properties", at),
        this.#value(property, `${at}/properties/${pointerPart(name)}`),
      ],
    }));
    for (const { isRequired, member } of members.toReversed()) {
      if (isRequired) {
        first = [...member, ...after];
        after = ['", "', ...member, ...after];
        // For each part of a sequence the engine keeps all that comes after it.
        if (after.length > 20) after = [this.#ruleOf([after])];
      } else {
        const [shared, rest] = [this.#ruleOf([member]), this.#ruleOf([after])];
        first = [this.#ruleOf([[shared, rest], first])];
        after = [this.#ruleOf([['", "', shared, rest], [rest]])];
      }
    }
    return [['"{"', ...first]];
  }

  #members(schema: Schema, at: string): Members {
    const properties = schema.properties ?? {};
    if (!isObject(properties)) this.#refuse("properties", at, "must be an object");
    const names = new Map(isObject(properties) ? Object.entries(properties) : []);
    const list = this.#list(schema, "required", at);
    const required = new Set(list.filter((name) => typeof name === "string"));
    if (!list.every((name) => typeof name === "string")) {
      this.#refuse("required", at, "must be a list of names");
    }
    let others = schema.additionalProperties ?? schema.unevaluatedProperties;
    let limits = this.#keyLimits(schema, at);
    const [pattern, ...patterns] = Object.entries(schema.patternProperties ?? {});
    if (pattern) {
      const isAlone = names.size + required.size + patterns.length === 0 && !asserts(limits);
      if (isAlone && !others) [limits, others] = [{ pattern: pattern[0] }, pattern[1]];
      else this.#refuse("patternProperties", at, "cannot be enforced beside others");
    }
    if ("enum" in limits || "const" in limits) {
      const listed = new Set(this.#valuesOf(limits, at));
      for (const name of names.keys()) if (!listed.has(name)) names.set(name, false);
      for (const name of listed) {
        if (typeof name === "string" && !names.has(name)) names.set(name, others ?? true);
      }
      [others, limits] = [false, {}];
    }
    for (const name of required) if (!names.has(name)) names.set(name, others ?? true);
    // A schema that names properties and is silent about others has no others.
    others ??= names.size === 0 && schema.properties === undefined;
    const isLimited = asserts(limits);
    if (isLimited && names.size > 0) {
      this.#refuse("propertyNames", at, "cannot be enforced beside properties");
    }
    if (others === false) return { names, required, others, key: this.#never() };
    const key = isLimited
      ? this.#ruleOf(this.#typeChoices("string", limits, `${at}/propertyNames`))
      : this.#otherKey([...names.keys()]);
    return { names, required, others, key };
  }

  /** What propertyNames says of strings. */
  #keyLimits(schema: Schema, at: string): Schema {
    const keys = this.#target(schema.propertyNames ?? true, at);
    if (keys === true) return {};
    const limits = isObject(keys) ? without(keys, "type") : {};
    const known = ["enum", "const", ...ofType.string];
    const isKnown = Object.keys(limits).every((key) => !isAssertion(key) || known.includes(key));
    const isOfStrings = isObject(keys) && [keys.type ?? "string"].flat().includes("string");
    if (isKnown && isOfStrings) return limits;
    this.#refuse("propertyNames", at, "cannot be enforced");
    return {};
  }

  /** A key that is none of these. It has no escapes, so that it has one spelling. */
  #otherKey(names: readonly string[]): Rule {
    if (names.length === 0) return this.#rule("string", () => this.#typeChoices("string", {}, ""));
    const codes = names.map((name) => Array.from(name, (char) => char.codePointAt(0)!));
    return this.#ruleOf([[QUOTE, this.#keyBut(codes, 0)]]);
  }

  /** As long as it may become one of the names it comes by single characters, which compile fast. */
  #keyBut(names: readonly (readonly number[])[], depth: number): Rule {
    return this.#rule(names, () => {
      const rest: Rule = this.#rule(
        "key",
        () => [[QUOTE], ...this.#chars(plain, [rest])],
        AFTER_STRING,
      );
      const longer = names.filter((name) => name.length > 0);
      const byFirst = Map.groupBy(longer, ([code]) => code!);
      const firsts = [...byFirst.keys()].map((code): Range => [code, code]);
      const others = intersect(plain, complement(firsts));
      const other = this.#rule(`key ${firsts}`, () => this.#chars(others, []), NOTHING);
      const choices: Part[][] = [[other, rest]];
      if (longer.length === names.length) choices.push([QUOTE]);
      if (depth === MAX_PREFIX) return choices;
      for (const [code, some] of byFirst) {
        const next = this.#keyBut(
          some.map((name) => name.slice(1)),
          depth + 1,
        );
        choices.push(...this.#chars([[code, code]], [next]));
      }
      return choices;
    });
  }

  // Strings

  /** A character of these, and then the next parts. */
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

  /** All rules share the bytes at the end of a character, where any will do. */
  #bytes(bytes: readonly Range[]): Part[] {
    const last = bytes.findLastIndex(([from, to]) => from !== 0x80 || to !== 0xbf);
    const head = bytes.slice(0, last + 1).map((range) => byteClass([range]));
    const tail = bytes.length - head.length;
    if (tail === 0) return head;
    return [...head, this.#rule(`bytes ${tail}`, () => [Array(tail).fill("[\\x80-\\xbf]")])];
  }

  /** Any character in any spelling, and then the next parts. */
  #anyChar(next: readonly Part[]): Part[][] {
    const digit = "[0-9a-fA-F]";
    // No halves of surrogate pairs: every escape is one character.
    const escape = this.#rule("escape", () => [
      ['["\\x5c/bfnrt]'],
      ['"u"', "[0-9a-cA-CefEF]", digit, digit, digit],
      ['"u"', "[dD]", "[0-7]", digit, digit],
    ]);
    return [...this.#chars(plain, next), [literal("\\"), escape, ...next]];
  }

  /** The rest of a string: what comes after its first quote. */
  #stringRest(schema: Schema, at: string): Rule {
    const { pattern, format } = schema;
    const counts = this.#counts(schema, "Length", at);
    const key = `string ${JSON.stringify([pattern, format, counts.min, counts.max])}`;
    return this.#rule(key, () => {
      const language = this.#language(schema, at);
      const rest = language
        ? this.#automatonRest(this.#bounded(language, counts, at), at)
        : this.#countedRest(counts, at);
      return [[rest]];
    });
  }

  /** What pattern and format allow; undefined where that is anything. */
  #language({ pattern, format }: Schema, at: string): Automaton | undefined {
    let language: Automaton | undefined;
    const add = (keyword: string, source: unknown) => {
      try {
        if (typeof source !== "string") throw new PatternError("must be a regular expression");
        const read = readPattern(source, this.#patternWork);
        language = language ? both(language, read, this.#patternWork) : read;
      } catch (error) {
        if (!(error instanceof PatternError)) throw error;
        this.#refuse(keyword, at, error.message);
      }
    };
    if (otherFormats.has(format)) this.#refuse("format", at, "cannot be enforced");
    if (typeof format === "string" && Object.hasOwn(formats, format))
      add("format", formats[format]);
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
      this.#refuse(key, at, "cannot be enforced together with this pattern or format");
      return language;
    }
  }

  #automatonRest(automaton: Automaton, at: string): Rule {
    if (automaton.length === 0) return this.#never();
    if (!this.#spend(costOf(automaton), "pattern", at)) return this.#anyRest();
    const rules = automaton.map(() => this.#ruleOf([], AFTER_STRING));
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
    const rest: Rule = this.#rule("rest", () => [[QUOTE], ...this.#anyChar([rest])], AFTER_STRING);
    return rest;
  }

  /**
   * A rule in which most tokens begin takes long to compile, so there is not one for each character. One
   * rule counts them and offers single characters alone; from wherever it has come to, a window of a few
   * rules offers the longer tokens, up to the end of the string if it is that near.
   */
  #countedRest({ min, max }: Counts, at: string): Rule {
    if (min > max) return this.#never();
    const extra = max === Infinity ? Infinity : Math.min(max - min, WINDOW);
    const windows = [
      ...Array.from({ length: Math.min(min, WINDOW) }, (_, i) => windowKey(i + 1, extra)),
      ...Array.from({ length: extra === Infinity ? 0 : extra }, (_, i) => windowKey(0, i + 1)),
      ...Array.from({ length: min > WINDOW ? WINDOW : 0 }, (_, i) => `a run of ${i + 1}`),
    ].filter((window) => !this.#paid.has(window));
    const keyword = max < Infinity ? "maxLength" : "minLength";
    if (!this.#spend(windows.length, keyword, at)) return this.#anyRest();
    for (const window of windows) this.#paid.add(window);
    return this.#counted(min, max);
  }

  /** So many characters, and the last quote. */
  #counted(min: number, max: number): Rule {
    const one = this.#rule("character", () => this.#anyChar([]), NOTHING);
    const isNear = max === Infinity || max - min <= WINDOW;
    if (min <= WINDOW && isNear) return this.#window(min, max - min);
    return this.#rule(`from ${min} to ${max}`, () => {
      if (min === 0) return [[this.#upTo(one, max - WINDOW), this.#window(0, WINDOW)]];
      const next = [one, this.#counted(min - 1, max - 1)];
      if (min <= WINDOW) return [[this.#window(min, WINDOW)], next];
      return [[this.#run(WINDOW), this.#counted(min - WINDOW, max - WINDOW)], next];
    });
  }

  /** At least `min` characters and at most `extra` more, and the last quote. */
  #window(min: number, extra: number): Rule {
    if (min === 0 && extra === Infinity) return this.#anyRest();
    const choices = (): Part[][] => {
      if (min > 0) return this.#anyChar([this.#window(min - 1, extra)]);
      return extra === 0 ? [[QUOTE]] : [[QUOTE], ...this.#anyChar([this.#window(0, extra - 1)])];
    };
    return this.#rule(windowKey(min, extra), choices, AFTER_STRING);
  }

  /** So many characters, and none of what comes then. */
  #run(count: number): Rule {
    const next = count === 1 ? [] : [this.#run(count - 1)];
    return this.#rule(`a run of ${count}`, () => this.#anyChar(next), NOTHING);
  }

  // Numbers

  #numberChoices(schema: Schema, at: string): Part[][] {
    const { format, multipleOf } = schema;
    const names = [schema.type].flat();
    const isWhole =
      (names.includes("integer") && !names.includes("number")) ||
      multipleOf === 1 ||
      format === "int32" ||
      format === "int64";
    if (multipleOf !== undefined && multipleOf !== 1) {
      this.#refuse("multipleOf", at, "cannot be enforced");
    }
    const bounds = (...keys: string[]) =>
      keys.flatMap((key): Bound[] => {
        const value = schema[key];
        if (typeof value === "number") return [{ value, isStrict: key.startsWith("exclusive") }];
        if (value !== undefined) this.#refuse(key, at, "must be a number");
        return [];
      });
    const low = bounds("minimum", "exclusiveMinimum");
    const high = bounds("maximum", "exclusiveMaximum");
    if (format === "int32") {
      low.push({ value: -(2 ** 31), isStrict: false });
      high.push({ value: 2 ** 31 - 1, isStrict: false });
    }
    const any = [[isWhole ? ANY_INTEGER : ANY_NUMBER]];
    if (low.length + high.length === 0) return any;
    const fractions = isWhole ? 0 : DIGITS;
    const choices = [
      ...this.#magnitudes(1, low, high, fractions),
      ...this.#magnitudes(-1, high, low, fractions).map((choice) => ['"-"', ...choice]),
    ];
    if (choices.length > 0) return choices;
    this.#refuse(low.length > 0 ? "minimum" : "maximum", at, "leaves no number of 15 digits");
    return any;
  }

  /** Numbers of one sign, between the bounds that are nearer to zero and those farther from it. */
  #magnitudes(sign: 1 | -1, near: Bound[], far: Bound[], fractions: number): Part[][] {
    const lengths = Array.from({ length: DIGITS }, (_, i) => i + 1);
    return lengths.flatMap((whole): Part[][] => {
      // Of 15 digits at most, different decimals are different numbers.
      const fraction = Math.max(fractions - whole, 0);
      const unit = 10n ** BigInt(fraction);
      const shortest = whole === 1 ? (sign < 0 ? 1n : 0n) : unit * 10n ** BigInt(whole - 1);
      const from = near.map(({ value, isStrict }) => {
        const { floor, isExact } = scaled(sign * value, fraction);
        return isExact && !isStrict ? floor : floor + 1n;
      });
      const to = far.map(({ value, isStrict }) => {
        const { floor, isExact } = scaled(sign * value, fraction);
        return isExact && isStrict ? floor - 1n : floor;
      });
      const first = from.reduce((a, b) => (a > b ? a : b), shortest);
      const last = to.reduce((a, b) => (a < b ? a : b), unit * 10n ** BigInt(whole) - 1n);
      if (first > last) return [];
      const text = (number: bigint) => `${number}`.padStart(whole + fraction, "0");
      return [[this.#digits(text(first), text(last), whole, "whole")]];
    });
  }

  /** Digits, of which `whole` come before the point and those after it need not all come. */
  #digits(from: string, to: string, whole: number, part: "whole" | "point" | "fraction"): Rule {
    return this.#rule(`digits ${from} ${to} ${whole} ${part}`, () => {
      const canEnd = whole === 0 && part !== "point" && /^0*$/.test(from);
      const choices: Part[][] = canEnd ? [[]] : [];
      if (from === "") return choices;
      if (whole === 0 && part === "whole") {
        return [...choices, ['"."', this.#digits(from, to, 0, "point")]];
      }
      const [zeros, nines] = ["0", "9"].map((digit) => digit.repeat(from.length - 1));
      const [low, high] = [from.slice(1), to.slice(1)];
      const add = (first: number, last: number, a = zeros!, b = nines!) => {
        const rest = this.#digits(
          a,
          b,
          Math.max(whole - 1, 0),
          part === "whole" ? part : "fraction",
        );
        if (first <= last) choices.push([byteClass([[0x30 + first, 0x30 + last]]), rest]);
      };
      // At the first and the last digit, what follows may have bounds of its own.
      const [first, last] = [Number(from[0]), Number(to[0])];
      const [isLowFree, isHighFree] = [low === zeros, high === nines];
      if (first === last) add(first, last, low, high);
      else {
        if (!isLowFree) add(first, first, low, nines);
        if (!isHighFree) add(last, last, zeros, high);
        add(isLowFree ? first : first + 1, isHighFree ? last : last - 1);
      }
      return choices;
    });
  }
}

const windowKey = (min: number, extra: number) => `at least ${min} and ${extra} more`;

/** A number times a power of ten, as its shortest decimal has it. */
function scaled(value: number, power: number): { floor: bigint; isExact: boolean } {
  const [mantissa, exponent] = value.toExponential().split("e") as [string, string];
  const [whole, fraction = ""] = mantissa.split(".") as [string, string?];
  const digits = BigInt(whole + fraction);
  const shift = Number(exponent) - fraction.length + power;
  if (shift >= 0) return { floor: digits * 10n ** BigInt(shift), isExact: true };
  const unit = 10n ** BigInt(-shift);
  const rest = digits % unit;
  return { floor: digits / unit - (rest < 0n ? 1n : 0n), isExact: rest === 0n };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function pointerPart(name: string): string {
  return name.replaceAll("~", "~0").replaceAll("/", "~1");
}

const leap = "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)";
const day = "(0[1-9]|1\\d|2[0-8])";
const days = `((0[13578]|1[02])-(${day}|29|30|31)|(0[469]|11)-(${day}|29|30)|02-${day})`;
const date = `(\\d{4}-${days}|${leap}-02-29)`;
const zone = "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
const time = `([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?${zone}`;
const count = "\\d{1,9}";
const clock = `T(${count}H(${count}M)?(${count}S)?|${count}M(${count}S)?|${count}S)`;
const calendar = `(${count}Y(${count}M)?(${count}D)?|${count}M(${count}D)?|${count}D)`;
const byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const group = "[0-9a-fA-F]{1,4}";
const label = "[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?";
const host = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?";
const visible = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
const path = `(//${host}(\\.${host})*(:\\d{1,5})?(/${visible}*)*|${visible}+)`;

/** Formats, as the most of each that is easy to enforce. */
const formats: Readonly<Record<string, string>> = {
  date: `^${date}$`,
  time: `^${time}$`,
  "date-time": `^${date}T${time}$`,
  duration: `^P(${count}W|${calendar}(${clock})?|${clock})$`,
  email: `^[\\w+-]+(\\.[\\w+-]+)*@(${host}\\.)+[a-zA-Z]{2,}$`,
  hostname: `^${label}(\\.${label}){0,3}$`,
  ipv4: `^(${byte}\\.){3}${byte}$`,
  ipv6: `^((${group}:){7}${group}|(${group}:){1,7}:|(${group}:){1,6}:${group}|::${group})$`,
  uuid: "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
  uri: `^[a-zA-Z][a-zA-Z0-9+.-]*:${path}(\\?(${visible}|[/?])*)?(#(${visible}|[/?])*)?$`,
};

/** Those that are defined too. Whatever else stands there is a note for people. */
const otherFormats = new Set<unknown>([
  ...["idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "url"],
  ...["json-pointer", "relative-json-pointer", "regex", "byte", "iso-time", "iso-date-time"],
]);
