// Interprets a schema: resolves references, merges several schemas for one value into one, and checks the values of
// keywords. A keyword with an invalid value is refused.
import {
  asserts,
  canonical,
  isAssertion,
  isObject,
  keywordsOf,
  membersOf,
  type Schema,
  type Type,
  typeOf,
  types,
  without,
} from "./keywords.ts";
import type { Counts, RuleBook } from "./rule-book.ts";

const MAX_REFERENCES = 64;
/** Larger upper bounds (MAX_COUNT) count as unlimited; larger lower bounds (MAX_LEAST) are refused, not enforced. */
const MAX_COUNT = 1_000_000;
const MAX_LEAST = 1000;

/** Pairs of keywords in one schema: the first applies only to properties or items that the second does not name. */
const scopes = [
  ["additionalProperties", "properties"],
  ["patternProperties", "properties"],
  ["propertyNames", "properties"],
  ["items", "prefixItems"],
] as const;

export class SchemaReader {
  readonly #root: unknown;
  readonly #book: RuleBook;
  readonly #merged = new Map<string, Schema>();
  /** Members of the schema's objects along the paths of $refs, cached because thousands of $refs may share a path. */
  readonly #members = new Map<unknown, Map<string, unknown>>();

  constructor(root: unknown, book: RuleBook) {
    this.#root = root;
    this.#book = book;
  }

  /** Resolves a reference, and merges its target with the keywords beside the reference. */
  target(schema: unknown, at: string, hops = 0): unknown {
    if (!isObject(schema) || !("$ref" in schema)) return schema;
    if (hops > MAX_REFERENCES) {
      this.#book.refuse("$ref", at, "leads back to itself");
      return true;
    }
    const rest = without(schema, "$ref");
    const target = this.target(this.#resolve(schema.$ref, at), at, hops + 1);
    return asserts(rest) ? this.merge(rest, [target], at) : target;
  }

  #resolve(ref: unknown, at: string): unknown {
    if (typeof ref !== "string" || !/^#(\/|$)/.test(ref)) {
      this.#book.refuse("$ref", at, "must point into the schema itself, as #/$defs/name does");
      return true;
    }
    let target = this.#root;
    for (const part of ref.split("/").slice(1)) {
      const name = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
      const members = this.#members.getOrInsertComputed(target, membersOf);
      if (!members.has(name)) {
        this.#book.refuse("$ref", at, "leads to nothing");
        return true;
      }
      target = members.get(name);
    }
    return target;
  }

  list(schema: Schema, key: string, at: string): readonly unknown[] {
    const list = schema[key] ?? [];
    if (Array.isArray(list)) return list;
    this.#book.refuse(key, at, "must be a list");
    return [];
  }

  counts(schema: Schema, of: string, at: string): Counts {
    const [min = 0, max = Infinity] = [`min${of}`, `max${of}`].map((key) => {
      const count = schema[key];
      if (count === undefined || (Number.isInteger(count) && Number(count) >= 0)) {
        return count as number | undefined;
      }
      this.#book.refuse(key, at, "must be a whole number");
      return undefined;
    });
    if (min > MAX_LEAST) this.#book.refuse(`min${of}`, at, "is too large to enforce");
    return { min: min > MAX_LEAST ? 0 : min, max: max > MAX_COUNT ? Infinity : max };
  }

  /** Returns the values of enum and const that also have the schema's type. */
  values(schema: Schema, at: string): unknown[] {
    const names = this.typeNames(schema, at);
    const isOfType = (value: unknown) =>
      names === undefined ||
      names.includes(typeOf(value)) ||
      (names.includes("integer") && Number.isInteger(value));
    const list = "enum" in schema ? this.list(schema, "enum", at) : [schema.const];
    const values = new Map(list.filter(isOfType).map((value) => [canonical(value), value]));
    const only = "const" in schema ? canonical(schema.const) : undefined;
    return [...values].flatMap(([text, value]) => ((only ?? text) === text ? [value] : []));
  }

  typeNames(schema: Schema, at: string): string[] | undefined {
    if (!("type" in schema)) return undefined;
    const names: unknown[] = [schema.type].flat();
    const known = [...types, "integer"].filter((name) => names.includes(name));
    if (names.every((name) => known.some((each) => each === name))) return known;
    this.#book.refuse("type", at, "must name types of JSON");
    return undefined;
  }

  /** Returns the types that a schema allows; without `type`, those that its other keywords apply to. */
  types(schema: Schema, at: string): Type[] {
    const names = this.typeNames(schema, at);
    if (names) {
      const has = (type: Type) => names.includes(type === "number" ? "integer" : type);
      return types.filter((type) => names.includes(type) || has(type));
    }
    const meant = types.filter((type) => keywordsOf[type].some((key) => key in schema));
    return meant.length > 0 ? meant : types;
  }

  /** Merges the constraints of all schemas into one schema. */
  merge(base: Schema, parts: readonly unknown[], at: string): unknown {
    let merged = base;
    for (const part of parts) {
      const target = this.target(part, at);
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
    // Equal results are shared, because a self-referential schema is merged with itself repeatedly.
    const text = JSON.stringify(merged);
    this.#book.step(1 + text.length / 100, "allOf", at);
    return this.#merged.getOrInsert(text, merged);
  }

  #checkScopes(a: Schema, b: Schema, at: string): void {
    for (const key of ["unevaluatedProperties", "unevaluatedItems"]) {
      if (key in b && b[key] !== true) {
        this.#book.refuse(key, at, "cannot be enforced within another");
      }
    }
    for (const [key, named] of scopes) {
      const [ofA, ofB] = [a, b].map((schema) => new Set(Object.keys(schema[named] ?? {})));
      const isLost = (schema: Schema, own: Set<string>, other: Set<string>) =>
        key in schema && schema[key] !== true && !other.isSubsetOf(own);
      if (isLost(a, ofA!, ofB!) || isLost(b, ofB!, ofA!)) {
        this.#book.refuse(key, at, `cannot be enforced beside ${named} of another schema`);
      }
    }
  }

  #mergeKeyword(key: string, a: unknown, b: unknown, at: string): unknown {
    if (canonical(a) === canonical(b)) return a;
    if (key === "items") return { allOf: [a, b] };
    if (key === "properties" && isObject(a) && isObject(b)) {
      const properties = membersOf(a);
      for (const [name, schema] of membersOf(b)) {
        const both = { allOf: [properties.get(name), schema] };
        properties.set(name, properties.has(name) ? both : schema);
      }
      return Object.fromEntries(properties);
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
    this.#book.refuse(key, at, "is said twice, in ways that cannot be combined");
    return a;
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
