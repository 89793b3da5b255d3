// Decides whether a value can match two schemas. The branches of oneOf must be disjoint: a grammar cannot express
// "and none of the others".
import { canonical, isObject, membersOf, type Schema, typeOf, types } from "./keywords.ts";
import type { SchemaReader } from "./reader.ts";
import type { RuleBook } from "./rule-book.ts";

const MAX_DEPTH = 4;

export class Overlap {
  readonly #reader: SchemaReader;
  readonly #book: RuleBook;

  constructor(reader: SchemaReader, book: RuleBook) {
    this.#reader = reader;
    this.#book = book;
  }

  /** Whether certainly no value matches both schemas; false if undecided. */
  areDisjoint(a: unknown, b: unknown, at: string, depth = 0): boolean {
    this.#book.step(1, "oneOf", at);
    const [x, y] = [this.#reader.target(a, at), this.#reader.target(b, at)];
    if (x === false || y === false) return true;
    if (!isObject(x) || !isObject(y) || depth > MAX_DEPTH) return false;
    const branches = [x, y].map((schema) => schema.anyOf ?? schema.oneOf);
    const i = branches.findIndex(Array.isArray);
    if (i >= 0) {
      const other = i === 0 ? y : x;
      const isApart = (branch: unknown) => this.areDisjoint(branch, other, at, depth + 1);
      return (branches[i] as unknown[]).every(isApart);
    }
    const [some, others] = [this.#possible(x, at), this.#possible(y, at)];
    if (some.values && others.values) return some.values.isDisjointFrom(others.values);
    if (some.types.isDisjointFrom(others.types)) return true;
    const areObjects = [...some.types, ...others.types].every((type) => type === "object");
    return areObjects && this.#areDisjointObjects(x, y, at, depth);
  }

  #possible(schema: Schema, at: string): { types: Set<string>; values: Set<string> | undefined } {
    if ("enum" in schema || "const" in schema) {
      const values = this.#reader.values(schema, at);
      this.#book.step(values.length, "oneOf", at);
      return { types: new Set(values.map(typeOf)), values: new Set(values.map(canonical)) };
    }
    const names = this.#reader.typeNames(schema, at) ?? types;
    const wide = names.map((name) => (name === "integer" ? "number" : name));
    return { types: new Set(wide), values: undefined };
  }

  /** True if a property that one schema requires is forbidden, or has a disjoint schema, in the other. */
  #areDisjointObjects(x: Schema, y: Schema, at: string, depth: number): boolean {
    const [propertiesOfX, propertiesOfY] = [x, y].map(({ properties }) =>
      membersOf(isObject(properties) ? properties : {}),
    ) as [Map<string, unknown>, Map<string, unknown>];
    const forbids = (schema: Schema, properties: Map<string, unknown>, name: string) =>
      schema.additionalProperties === false &&
      !properties.has(name) &&
      !("patternProperties" in schema);
    const [requiredByX, requiredByY] = [x, y].map(
      (schema) => new Set(this.#reader.list(schema, "required", at)),
    ) as [Set<unknown>, Set<unknown>];
    this.#book.step(requiredByX.size + requiredByY.size, "oneOf", at);
    return [...requiredByX.union(requiredByY)].some((name) => {
      if (typeof name !== "string") return false;
      if (forbids(x, propertiesOfX, name) || forbids(y, propertiesOfY, name)) return true;
      if (!requiredByX.has(name) || !requiredByY.has(name)) return false;
      const valueOf = (properties: Map<string, unknown>) =>
        properties.has(name) ? properties.get(name) : true;
      return this.areDisjoint(valueOf(propertiesOfX), valueOf(propertiesOfY), at, depth + 1);
    });
  }
}
