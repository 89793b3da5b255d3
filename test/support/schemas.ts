// JSON schemas of many kinds that are the same for the same seed: all of them can be enforced, and most of
// their documents are short.
import { makeRandom, type Random } from "./random.ts";

export type JsonSchema = Record<string, unknown>;

export function schemas(count: number, seed: number): JsonSchema[] {
  const random = makeRandom(seed);
  return Array.from({ length: count }, () => roots[random.below(roots.length)]!(random, 2));
}

const names = [
  ..."id name kind größe 名前 back\\slash count tags x-y.z $price città имя note".split(" "),
  ...["emoji 😀", 'a "quoted" name', "tab\there", "ratio", "is_open", ""],
];
const words = ["red", "green", "blau", "日本語", "naïve", "a\\b", "😀"];
const values = [...words, 'say "hi"', "line\nbreak", ""];
const patterns = [
  ..."^[A-Z]{2}-\\d{4}$ ^#[0-9a-f]{6}$ ^(yes|no|maybe)$ ^v\\d+\\.\\d+$ [0-9]$ ^x".split(" "),
  ...'^[a-z]+(-[a-z]+){0,2}$ ^[^"\\s]{1,5}$ ^[äöüß]{1,3}$ ^(?!0)\\d{1,3}$ ^\\w+@\\w+$'.split(" "),
];
const formats = ["date", "time", "date-time", "email", "uuid", "ipv4", "duration", "hostname"];

type Make = (random: Random, depth: number) => JsonSchema;

const leaves: readonly Make[] = [
  () => ({ type: "boolean" }),
  () => ({ type: "string", title: "Any text" }),
  (random) => {
    const minLength = random.below(4);
    return { type: "string", minLength, maxLength: minLength + random.below(40) };
  },
  (random) => ({ type: "string", pattern: patterns[random.below(patterns.length)] }),
  (random) => ({ type: "string", format: formats[random.below(formats.length)] }),
  (random) => ({ type: "string", enum: some(random, values, 4) }),
  (random) => ({ enum: [null, random.below(1000), -1.5, true, ...some(random, values, 2)] }),
  (random) => ({ const: values[random.below(values.length)], description: "always this" }),
  (random) => {
    const minimum = random.below(2000) - 1000;
    return { type: "integer", minimum, maximum: minimum + random.below(5000) };
  },
  (random) => ({ type: "integer", exclusiveMinimum: -random.below(100) }),
  (random) => {
    const minimum = (random.below(2000) - 1000) / 64;
    return { type: "number", minimum, exclusiveMaximum: minimum + 1 + random.below(100) };
  },
  () => ({ type: ["string", "null"], maxLength: 12 }),
  (random) => ({ anyOf: [{ type: "integer", maximum: random.below(50) }, { type: "null" }] }),
];

const nested: readonly Make[] = [
  (random, depth) => object(random, depth - 1),
  (random, depth) => {
    const minItems = random.below(3);
    const maxItems = minItems + random.below(4);
    return { type: "array", items: any(random, depth - 1), minItems, maxItems };
  },
  (random, depth) => ({
    type: "array",
    prefixItems: [leaf(random), leaf(random)],
    items: random.chance(0.5) ? false : any(random, depth - 1),
    minItems: 2,
    maxItems: 3,
  }),
  (random) => ({ type: "object", additionalProperties: leaf(random), maxProperties: 2 }),
  (random, depth) => ({ anyOf: [object(random, depth - 1), leaf(random), { type: "null" }] }),
  (random) => ({
    oneOf: ["circle", "square"].map((kind, i) => ({
      type: "object",
      properties: { kind: { const: kind }, [i === 0 ? "radius" : "side"]: leaf(random) },
      required: ["kind"],
      additionalProperties: false,
    })),
  }),
  (random) => ({
    allOf: [{ type: "object", properties: { left: leaf(random) }, required: ["left"] }],
    properties: { right: leaf(random) },
  }),
];

const roots: readonly Make[] = [
  ...Array<Make>(5).fill(object),
  (random) => ({
    $ref: "#/$defs/list",
    $defs: {
      list: {
        type: "object",
        properties: {
          value: { $ref: "#/$defs/value" },
          next: { anyOf: [{ $ref: "#/$defs/list" }, { type: "null" }] },
        },
        required: ["value", "next"],
        additionalProperties: false,
      },
      value: leaf(random),
    },
  }),
  (random) => ({
    type: "object",
    properties: { label: leaf(random), 子: { type: "array", items: { $ref: "#" }, maxItems: 2 } },
    required: ["label"],
  }),
  (random) => ({ type: "array", items: leaf(random), maxItems: 3 }),
];

function object(random: Random, depth: number): JsonSchema {
  const listed = some(random, names, 1 + random.below(4));
  return {
    type: "object",
    properties: Object.fromEntries(listed.map((name) => [name, any(random, depth)])),
    required: listed.filter(() => random.chance(0.7)),
    additionalProperties: random.chance(0.8) ? false : { type: "integer" },
  };
}

function any(random: Random, depth: number): JsonSchema {
  const isLeaf = depth <= 0 || random.chance(0.7);
  return isLeaf ? leaf(random) : nested[random.below(nested.length)]!(random, depth);
}

function leaf(random: Random): JsonSchema {
  return leaves[random.below(leaves.length)]!(random, 0);
}

/** Some of a list, each once. */
function some<T>(random: Random, from: readonly T[], count: number): T[] {
  const left = [...from];
  return Array.from({ length: count }, () => left.splice(random.below(left.length), 1)[0]!);
}
