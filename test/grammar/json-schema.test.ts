// What a schema's grammar allows, drawn at random from it and checked by a validator; what it must and must
// not allow, text by text; and what is refused.
import { expect, test } from "bun:test";
import {
  type CompiledGrammar,
  Grammar,
  GrammarCompiler,
  GrammarMatcher,
  Testings,
  TokenizerInfo,
} from "@mlc-ai/web-xgrammar";
import { Ajv2020 } from "ajv/dist/2020";
import addFormats from "ajv-formats";
import * as z from "zod";
import { schemaGrammar } from "../../src/grammar/json-schema.ts";
import { makeRandom, type Random } from "../support/random.ts";
import { schemas } from "../support/schemas.ts";

/** Every byte is a token, and so are some texts that go over the ends of names, strings and numbers. */
const texts = [
  ...[", ", ": ", '": ', '", "', "the "],
  ...'"} "] "}, }} ]} {" [" {} [] null true'.split(" "),
  ...'ab name 2024 0.5 12 - é 日本 😀 \\n \\" \\u00 @a. A'.split(" "),
];
const tokens = [
  ...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)),
  ...texts.map((text) => new TextEncoder().encode(text)),
];
const END = tokens.length;
const closing = new Set(["}", "]", '"', '"}', '"]', "}}", "]}", '"},'].map(tokenOf));

function tokenOf(text: string): number {
  const bytes = [...new TextEncoder().encode(text)].join();
  return tokens.findIndex((token) => token.join() === bytes);
}

/** As a tokenizer of bytes writes them: a printable character for each. */
function written(bytes: Uint8Array): string {
  const isPrintable = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  const others = Array.from({ length: 256 }, (_, byte) => byte).filter(
    (byte) => !isPrintable(byte),
  );
  const code = (byte: number) => (isPrintable(byte) ? byte : 256 + others.indexOf(byte));
  return String.fromCodePoint(...[...bytes].map(code));
}

const vocabulary = [...tokens.map(written), "<end>"];
const info = await TokenizerInfo.createTokenizerInfo(vocabulary, "byte_level", false, END + 1, END);
const compiler = await GrammarCompiler.createGrammarCompiler(info, false);
const decoder = new TextDecoder("utf-8", { fatal: true });

async function allowed(matcher: GrammarMatcher): Promise<number[]> {
  const mask = await matcher.getNextTokenBitmask();
  return vocabulary.map((_, token) => token).filter((id) => (mask[id >> 5]! >>> (id & 31)) & 1);
}

/** A document of tokens that were allowed, or undefined where it does not come to an end. */
async function draw(compiled: CompiledGrammar, random: Random): Promise<string | undefined> {
  const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
  const bytes: number[] = [];
  const shortAfter = random.below(60);
  try {
    for (let count = 0; count < 300; count++) {
      const all = await allowed(matcher);
      if (all.length === 0) throw new Error(`no way on after ${Buffer.from(bytes)}`);
      const short = all.filter((token) => token === END || closing.has(token));
      const isShort = short.length > 0 && random.chance(count > shortAfter ? 0.9 : 0.1);
      const from = isShort ? short : all;
      const token = from[random.below(from.length)]!;
      if (!matcher.acceptToken(token)) throw new Error("a token that was allowed is refused");
      if (token === END) return decoder.decode(Uint8Array.from(bytes));
      bytes.push(...tokens[token]!);
    }
    return undefined;
  } finally {
    matcher.dispose();
  }
}

const ajv = new Ajv2020({ strict: false, logger: false, ownProperties: true });
addFormats.default(ajv);

async function drawValid(schema: object, count: number, random: Random): Promise<number> {
  const { grammar, fault } = schemaGrammar(schema);
  expect({ schema, fault }).toEqual({ schema, fault: undefined });
  const compiled = await compiler.compileGrammar(grammar);
  const validate = ajv.compile(schema);
  let drawn = 0;
  for (let i = 0; i < count; i++) {
    const text = await draw(compiled, random);
    if (text === undefined) continue;
    drawn += 1;
    const errors = validate(JSON.parse(text)) ? [] : validate.errors;
    expect({ schema, text, errors }).toEqual({ schema, text, errors: [] });
  }
  compiled.dispose();
  return drawn;
}

test("documents drawn from 300 schemas are valid", async () => {
  const random = makeRandom(9);
  let drawn = 0;
  for (const schema of schemas(300, 9)) drawn += await drawValid(schema, 2, random);
  expect(drawn).toBeGreaterThan(500);
}, 60_000);

type Case = { schema: object; valid: string[]; invalid: string[] };

const [nothing, a] = [{ type: "null" }, { const: 1 }];
const next = { $ref: "#/$defs/node" };
const node = { type: "object", properties: { v: { type: "null" }, next } };

const absent = ["{}", '{"a": null}', '{"a": null, "c": null}'];

const cases: Record<string, Case> = {
  "a property's name has one value": {
    schema: {
      type: "object",
      properties: { name: { type: "integer" }, 'ü"': { type: "null" } },
      required: ["name"],
      additionalProperties: { type: "string" },
    },
    valid: ['{"name": 1}', '{"name": 1, "nam": "", "names": "", "üx": "", "": ""}'],
    invalid: ["name", "n\\u0061me", 'ü\\"'].map((name) => `{"name": 1, "${name}": ""}`),
  },
  "optional properties come or not": {
    schema: {
      type: "object",
      properties: { a: nothing, b: nothing, c: nothing },
      required: ["b"],
    },
    valid: ['{"b": null}', '{"a": null, "b": null}', '{"b": null, "c": null}'],
    invalid: [...absent, '{"b": null, "d": null}', '{, "b": null}'],
  },
  "a name may be required without being described": {
    schema: { type: "object", required: ["a"], additionalProperties: { type: "boolean" } },
    valid: ['{"a": true}', '{"a": true, "b": false}'],
    invalid: ["{}", '{"b": true}', '{"a": null}'],
  },
  "names that every JavaScript object has are names like others": {
    schema: JSON.parse(`{
      "allOf": [
        { "type": "object", "properties": { "__proto__": { "type": "integer" } } },
        { "properties": { "__proto__": { "minimum": 3 }, "constructor": { "$ref": "#/$defs/toString" } } }
      ],
      "$defs": { "toString": { "type": "null" } },
      "required": ["__proto__"]
    }`),
    valid: ['{"__proto__": 3}', '{"__proto__": 4, "constructor": null}'],
    invalid: ["{}", '{"__proto__": 2}', '{"__proto__": 3, "constructor": 1}'],
  },
  "such names are forbidden like others, and so tell objects apart": {
    schema: {
      oneOf: [
        { type: "object", properties: { a, constructor: nothing }, required: ["a", "constructor"] },
        { type: "object", properties: { a }, required: ["a"], additionalProperties: false },
      ],
    },
    valid: ['{"a": 1}', '{"a": 1, "constructor": null}'],
    invalid: ["{}", '{"constructor": null}'],
  },
  "properties are counted": {
    schema: { type: "object", additionalProperties: nothing, minProperties: 1, maxProperties: 2 },
    valid: ['{"a": null}', '{"a": null, "b": null}'],
    invalid: ["{}", '{"a": null, "b": null, "c": null}'],
  },
  "names are of an enumeration": {
    schema: {
      properties: { z: { type: "null" } },
      propertyNames: { enum: ["x", "y"] },
      additionalProperties: { type: "null" },
      required: ["y"],
    },
    valid: ['{"y": null}', '{"x": null, "y": null}'],
    invalid: ["{}", '{"x": null}', '{"z": null, "y": null}', '{"y": null, "w": null}'],
  },
  "names match a pattern": {
    schema: { patternProperties: { "^k[0-9]$": { type: "null" } }, additionalProperties: false },
    valid: ["{}", '{"k1": null, "k2": null}'],
    invalid: ['{"k": null}', '{"k10": null}'],
  },
  "an object without a word about its properties has any": {
    schema: { type: "object" },
    valid: ["{}", '{"a": {"b": [1, "x", {}]}}'],
    invalid: ["[]", "1"],
  },
  "items are counted": {
    schema: { type: "array", items: { type: "null" }, minItems: 2, maxItems: 18 },
    valid: [array(2), array(17), array(18)],
    invalid: [array(0), array(1), array(19)],
  },
  "many items are counted": {
    schema: { type: "array", items: { type: "null" }, minItems: 255, maxItems: 300 },
    valid: [array(255), array(256), array(300)],
    invalid: [array(254), array(301)],
  },
  "a tuple is whole": {
    schema: { type: "array", prefixItems: [nothing, a], items: { const: 2 }, maxItems: 3 },
    valid: ["[null, 1]", "[null, 1, 2]"],
    invalid: ["[]", "[null]", "[null, 1, 1]", "[null, 1, 2, 2]"],
  },
  "the rest of a tuple is described": {
    schema: { type: "array", prefixItems: [{ const: 1 }], unevaluatedItems: { const: 2 } },
    valid: ["[1]", "[1, 2, 2]"],
    invalid: ["[1, 1]", "[2]"],
  },
  "the characters of a string are counted": {
    schema: { type: "string", minLength: 2, maxLength: 4 },
    valid: ['"ab"', '"日本語é"', '"\\n\\u00e9😀a"'],
    invalid: ['"a"', '"😀"', '"abcde"', '"\\ud83d\\ude00"', '"a\tb"'],
  },
  "many characters are counted": {
    schema: { type: "string", minLength: 40, maxLength: 400 },
    valid: [40, 41, 200, 399, 400].map((count) => `"${"é".repeat(count)}"`),
    invalid: [0, 17, 39, 401].map((count) => `"${"é".repeat(count)}"`),
  },
  "a pattern is searched for": {
    schema: { type: "string", pattern: "b+c|^x" },
    valid: ['"bc"', '"a bbc d"', '"x"', '"xyz"'],
    invalid: ['""', '"b"', '"ax"', '"bac"'],
  },
  "a pattern knows escapes and characters beyond ASCII": {
    schema: { type: "string", pattern: '^["\\\\]\\s[à-ü\\u4e00-\\u9fff]\\u{1f600}?[^é]$' },
    valid: ['"\\" ü😀x"', '"\\\\\\n日è"'],
    invalid: ['"\\" ya"', '"\\"xüx"', '"\\" üé"', '"x üx"'],
  },
  "a pattern has so many characters": {
    schema: { type: "string", pattern: "^a*b?$", minLength: 2, maxLength: 3 },
    valid: ['"aa"', '"aab"', '"aaa"'],
    invalid: ['"a"', '"b"', '"aaab"', '"aaaa"'],
  },
  "patterns look ahead from the beginning": {
    schema: { type: "string", pattern: "^(?!.*--)(?=.*\\d)[a-z\\d-]{2,4}$" },
    valid: ['"a1"', '"-1-"'],
    invalid: ['"ab"', '"1--a"', '"abcd1"'],
  },
  "a pattern may ask for the ends of a text twice": {
    schema: { type: "string", pattern: "^(?!^a)(^\\w|bc$)$" },
    valid: ['"b"', '"bc"'],
    invalid: ['"a"', '"bb"', '"abc"'],
  },
  "pattern, format and length hold at once": {
    schema: { type: "string", pattern: "^2", format: "date", maxLength: 10 },
    valid: ['"2024-02-29"', '"2100-02-28"'],
    invalid: ['"1999-01-01"', '"2100-02-29"', '"2024-13-01"', '"2024-2-1"'],
  },
  "integers have bounds": {
    schema: { type: "integer", minimum: -12, exclusiveMaximum: 105 },
    valid: ["-12", "-9", "0", "99", "104"],
    invalid: ["-13", "-20", "-0", "105", "110", "007", "1.0"],
  },
  "integers have bounds that are none": {
    schema: { type: "integer", minimum: -2.5, maximum: -0.5 },
    valid: ["-2", "-1"],
    invalid: ["-3", "0"],
  },
  "integers have 32 bits": {
    schema: { type: "integer", format: "int32" },
    valid: ["-2147483648", "0", "2147483647"],
    invalid: ["-2147483649", "2147483648", "10000000000"],
  },
  "numbers have bounds": {
    schema: { type: "number", exclusiveMinimum: -0.5, maximum: 10.25 },
    valid: ["-0.49999", "0", "0.0", "9.999", "10", "10.25", "10.2500"],
    invalid: ["-0.5", "-0.50", "-1", "10.251", "10.3", "11", "1e1", ".5"],
  },
  "numbers stay finite": {
    schema: { type: "number" },
    valid: ["-1.5e-3", "0", "123456789012345"],
    invalid: ["1e999", "01", "1."],
  },
  "values are written as JSON": {
    schema: { enum: ['a"b', "é😀", { k: [1, null] }, -1e-7, "\n"] },
    valid: ['"a\\"b"', '"é😀"', '{"k":[1,null]}', "-1e-7", '"\\n"'],
    invalid: ['"a"', "null"],
  },
  "values begin and end alike": {
    schema: { enum: ["ccc", "abc", "abb", "cab"] },
    valid: ['"ccc"', '"abc"', '"abb"', '"cab"'],
    invalid: ['"ccb"', '"cac"', '"acc"', '"caab"'],
  },
  "an enumeration is of the type": {
    schema: { type: ["integer", "null"], enum: [1, 1.5, "1", null] },
    valid: ["1", "null"],
    invalid: ["1.5", '"1"'],
  },
  "every type has its keywords": {
    schema: { type: ["string", "integer", "array"], minLength: 1, minimum: 5, items: { const: 0 } },
    valid: ['"a"', "5", "[]", "[0, 0]"],
    invalid: ['""', "4", "[1]", "null"],
  },
  "a schema refers to itself": {
    schema: { $ref: "#/$defs/node", $defs: { node } },
    valid: ["{}", '{"v": null, "next": {"next": {}}}'],
    invalid: ['{"next": null}', "[]"],
  },
  "a reference is decoded, and what stands beside it holds too": {
    schema: {
      $ref: "#/$defs/a~1b%20c",
      maximum: 5,
      $defs: { "a/b c": { type: "integer", minimum: 3 } },
    },
    valid: ["3", "5"],
    invalid: ["2", "6"],
  },
  "what stands beside anyOf holds for every branch": {
    schema: {
      type: "object",
      properties: { a: { type: "null" }, b: { type: "null" } },
      anyOf: [{ required: ["a"] }, { required: ["b"], properties: { b: {} } }],
    },
    valid: ['{"a": null}', '{"b": null}', '{"a": null, "b": null}'],
    invalid: ["{}", '{"b": 1}'],
  },
  "allOf is one schema": {
    schema: {
      type: "object",
      allOf: [
        {
          properties: { a: { type: ["integer", "string"], minimum: 3, maxLength: 0 } },
          required: ["a"],
        },
        { properties: { a: { type: "number", minimum: 2, maximum: 4 } } },
        { properties: { a: { maximum: 9 }, b: { type: "null" } }, required: ["b"] },
      ],
    },
    valid: ['{"a": 3, "b": null}', '{"a": 4, "b": null}'],
    invalid: ['{"a": 3}', ...["2", "5", "3.5", '""'].map((a) => `{"a": ${a}, "b": null}`)],
  },
  "oneOf has branches that are told apart": {
    schema: {
      oneOf: [
        { type: "object", properties: { k: { const: "a" } }, required: ["k"] },
        { $ref: "#/$defs/b" },
        { type: "string" },
      ],
      $defs: { b: { type: "object", properties: { k: { enum: ["b", "c"] } }, required: ["k"] } },
    },
    valid: ['{"k": "a"}', '{"k": "c"}', '"a"'],
    invalid: ['{"k": "d"}', "{}"],
  },
  "what can never end, or is never valid, is left out": {
    schema: {
      type: "object",
      properties: { a: { $ref: "#/$defs/endless" }, b: false, c: nothing, d: { ...a, enum: [2] } },
      $defs: { endless: { type: "array", items: { $ref: "#/$defs/endless" }, minItems: 1 } },
    },
    valid: ["{}", '{"c": null}'],
    invalid: ['{"a": [', '{"b": null}', '{"d": null}'],
  },
};

function array(count: number): string {
  return `[${Array(count).fill("null").join(", ")}]`;
}

for (const [name, { schema, valid, invalid }] of Object.entries(cases)) {
  test(name, async () => {
    const { grammar: text, fault } = schemaGrammar(schema);
    expect(fault).toBeUndefined();
    const validate = ajv.compile(schema);
    expect(valid.filter((each) => !validate(JSON.parse(each)))).toEqual([]);
    const grammar = await Grammar.fromEBNF(text);
    const accepts = (each: string) => Testings.isGrammarAcceptString(grammar, each);
    expect(await Promise.all(valid.map(accepts))).toEqual(valid.map(() => true));
    expect(await Promise.all(invalid.map(accepts))).toEqual(invalid.map(() => false));
    grammar.dispose();
    await drawValid(schema, 10, makeRandom(1));
  });
}

test("what zod writes for its types is enforced", async () => {
  const schema = z.toJSONSchema(
    z.object({
      id: z.uuid(),
      mail: z.email().optional(),
      site: z.url(),
      at: z.iso.datetime().nullable(),
      day: z.iso.date(),
      count: z.int().positive(),
      ratio: z.number().min(0).max(1),
      slug: z
        .string()
        .regex(/^[a-z]+$/)
        .max(20),
      code: z.nanoid(),
      title: z.string().min(1).max(200).default("none"),
      pair: z.tuple([z.string(), z.number()]),
      points: z.record(z.string(), z.int32()),
      grades: z.record(z.enum(["a", "b"]), z.boolean()),
      shape: z.discriminatedUnion("kind", [
        z.object({ kind: z.literal("circle"), radius: z.number() }),
        z.object({ kind: z.literal("square"), side: z.number() }),
      ]),
      tags: z.array(z.enum(["x", "y"])).max(5),
    }),
  );
  expect(schemaGrammar(schema).fault).toBeUndefined();
  for (const property of Object.values(schema.properties!)) {
    expect(await drawValid(property as object, 10, makeRandom(2))).toBeGreaterThan(0);
  }
});

test("what pydantic writes is enforced", async () => {
  const schema = {
    title: "Order",
    type: "object",
    properties: {
      id: { title: "Id", type: "integer", exclusiveMinimum: 0 },
      note: {
        anyOf: [{ maxLength: 50, type: "string" }, { type: "null" }],
        default: null,
        title: "Note",
      },
      lines: { items: { $ref: "#/$defs/Line" }, minItems: 1, title: "Lines", type: "array" },
      state: { $ref: "#/$defs/State", default: "new" },
      parent: { anyOf: [{ $ref: "#/$defs/Order" }, { type: "null" }], default: null },
      paid: {
        discriminator: { mapping: { card: "#/$defs/Card" }, propertyName: "by" },
        oneOf: [{ $ref: "#/$defs/Card" }, { $ref: "#/$defs/Cash" }],
      },
      extra: { additionalProperties: { type: "number" }, title: "Extra", type: "object" },
    },
    required: ["id", "lines", "paid"],
    $defs: {
      State: { enum: ["new", "done"], title: "State", type: "string" },
      Line: {
        properties: {
          sku: { pattern: "^[A-Z]{3}\\d{3}$", type: "string" },
          n: { type: "integer" },
        },
        required: ["sku", "n"],
        type: "object",
      },
      Order: { properties: { id: { type: "integer" } }, required: ["id"], type: "object" },
      Card: {
        properties: { by: { const: "card", type: "string" } },
        required: ["by"],
        type: "object",
      },
      Cash: {
        properties: { by: { const: "cash", type: "string" } },
        required: ["by"],
        type: "object",
      },
    },
  };
  expect(schemaGrammar(schema).fault).toBeUndefined();
  expect(await drawValid(schema, 20, makeRandom(3))).toBeGreaterThan(5);
});

const text = { type: "string" };

const refusals: [keyword: string, schema: object, why: RegExp][] = [
  ["not", { not: { type: "null" } }, /cannot be enforced/],
  ["if", { if: { type: "null" }, else: { const: 1 } }, /cannot be enforced/],
  ["dependentRequired", { type: "object", dependentRequired: { a: ["b"] } }, /cannot/],
  ["dependentSchemas", { type: "object", dependentSchemas: { a: {} } }, /cannot/],
  ["contains", { type: "array", contains: { const: 1 } }, /cannot/],
  ["minContains", { type: "array", minContains: 1 }, /cannot/],
  ["uniqueItems", { type: "array", uniqueItems: true }, /cannot/],
  ["items", { type: "array", items: [text] }, /use prefixItems/],
  ["multipleOf", { type: "number", multipleOf: 0.01 }, /cannot/],
  ["minimum", { type: "integer", minimum: 1e20 }, /15 digits/],
  ["minimum", { type: "integer", minimum: "1" }, /must be a number/],
  ["exclusiveMinimum", { type: "integer", exclusiveMinimum: true }, /must be a number/],
  ["minLength", { type: "string", minLength: -1 }, /whole number/],
  ["minLength", { type: "string", minLength: 5000 }, /too large/],
  ["minItems", { type: "array", items: text, minItems: 5000 }, /too large/],
  ["maxLength", { type: "string", format: "uri", maxLength: 2083 }, /pattern or format/],
  ["pattern", { type: "string", pattern: "(" }, /regular expression/],
  ["pattern", { type: "string", pattern: "a(?=b)" }, /lookaround/],
  ["pattern", { type: "string", pattern: "(?<!a)b" }, /lookaround/],
  ["pattern", { type: "string", pattern: "^(?=a)b|c" }, /lookahead/],
  ["pattern", { type: "string", pattern: "(a)\\1" }, /back reference/],
  ["pattern", { type: "string", pattern: "\\bword\\b" }, /word boundary/],
  ["pattern", { type: "string", pattern: "\\p{L}" }, /Unicode property/],
  ["format", { type: "string", format: "regex" }, /cannot/],
  ["minProperties", { type: "object", additionalProperties: text, minProperties: 2 }, /cannot/],
  ["maxProperties", { properties: { a: text, b: text, c: text }, maxProperties: 2 }, /so many/],
  ["patternProperties", { properties: { a: text }, patternProperties: { b: text } }, /beside/],
  [
    "propertyNames",
    { properties: { a: text }, propertyNames: { maxLength: 3 }, additionalProperties: text },
    /beside/,
  ],
  ["propertyNames", { required: ["a"], propertyNames: { pattern: "b" } }, /beside/],
  ["propertyNames", { type: "object", propertyNames: { not: {} } }, /cannot/],
  ["required", { type: "object", required: [1] }, /list of names/],
  ["properties", { type: "object", properties: [] }, /must be an object/],
  ["type", { type: "text" }, /types of JSON/],
  ["minLength", { enum: ["a"], minLength: 2 }, /together with enum/],
  ["oneOf", { oneOf: [{ type: "number" }, { type: "integer" }] }, /at once/],
  ["oneOf", { oneOf: [{ required: ["a"] }, { required: ["b"] }] }, /at once/],
  ["anyOf", { anyOf: text }, /must be a list/],
  ["pattern", { allOf: [{ pattern: "a" }, { pattern: "b" }] }, /said twice/],
  [
    "additionalProperties",
    {
      allOf: [
        { properties: { a: text }, additionalProperties: false },
        { properties: { b: text } },
      ],
    },
    /beside properties of another/,
  ],
  [
    "unevaluatedProperties",
    { type: "object", allOf: [{ unevaluatedProperties: false }] },
    /within/,
  ],
  ["$ref", { $ref: "https://example.com/schema" }, /itself/],
  ["$ref", { $ref: "#/$defs/none" }, /leads to nothing/],
  ["$ref", { $ref: "#/$defs/constructor", $defs: {} }, /leads to nothing/],
  ["$ref", { $ref: "#/$defs/__proto__", $defs: {} }, /leads to nothing/],
  ["$ref", { $ref: "#/$defs/a", $defs: { a: { $ref: "#/$defs/a" } } }, /back to itself/],
  ["$dynamicRef", { $dynamicRef: "#a" }, /cannot/],
  ["$id", { properties: { a: { $id: "b", type: "null" } } }, /known at the root/],
  ["schema", { type: "string", minLength: 2, maxLength: 1 }, /allows no document/],
  ["schema", { type: "array", items: text, minItems: 2, maxItems: 1 }, /allows no document/],
  ["schema", { properties: { a: { $ref: "#" } }, required: ["a"] }, /allows no document/],
  ["schema", { properties: { a: 1 } }, /object or a boolean/],
];

for (const [keyword, schema, why] of refusals) {
  test(`${keyword} is refused: ${JSON.stringify(schema)}`, () => {
    const { fault } = schemaGrammar(schema);
    expect(fault?.keyword).toBe(keyword);
    expect(fault?.message).toMatch(why);
    expect(fault?.message).toStartWith(keyword);
  });
}

test("a fault says where it is", () => {
  const schema = { properties: { "a/b": { items: { type: "string", format: "iri" } } } };
  expect(schemaGrammar(schema).fault).toEqual({
    keyword: "format",
    pointer: "/properties/a~1b/items",
    message: "format at /properties/a~1b/items cannot be enforced",
  });
});

test("the grammar of a schema with a fault holds to all else", async () => {
  const schema = {
    type: "object",
    properties: {
      a: { type: "integer", minimum: 1, multipleOf: 2 },
      b: { type: "string", pattern: "(?<!a)b", maxLength: 2 },
      c: { type: "array", items: { type: "null" }, uniqueItems: true, minItems: 1 },
    },
    required: ["a"],
  };
  const { grammar, fault } = schemaGrammar(schema);
  expect(fault?.keyword).toBe("multipleOf");
  const parsed = await Grammar.fromEBNF(grammar);
  const accepts = (each: string) => Testings.isGrammarAcceptString(parsed, each);
  expect(await accepts('{"a": 3, "b": "ab", "c": [null, null]}')).toBe(true);
  expect(await accepts('{"a": 0}')).toBe(false);
  expect(await accepts('{"a": 3, "b": "abc"}')).toBe(false);
  expect(await accepts('{"a": 3, "c": []}')).toBe(false);
});

const repeated = (count: number, wrap: (inner: object) => object) =>
  Array.from({ length: count }).reduce<object>(wrap, { type: "null" });
const many = (count: number, make: (i: number) => unknown) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, make(i)]));
const chained = (make: (next: object, i: number) => object) => ({
  $ref: "#/$defs/p0",
  $defs: { ...many(40, (i) => make({ $ref: `#/$defs/p${i + 1}` }, i)), p40: { type: "null" } },
});

/** Whether each can be enforced. What matters is that it is soon known, and that its grammar is small. */
const hostile: Record<string, [schema: unknown, isEnforced: boolean]> = {
  "10,000 levels": [repeated(10_000, (items) => ({ type: "array", items })), false],
  "10,000 levels in a value": [{ enum: [repeated(10_000, (each) => [each])] }, false],
  "20,000 properties": [{ properties: many(20_000, () => text) }, false],
  "a name of a megabyte": [{ properties: { ["x".repeat(1e6)]: text } }, false],
  "a value of a megabyte": [{ const: "x".repeat(1e6) }, false],
  "a number beyond numbers": [JSON.parse('{"enum": [[1e999]]}'), false],
  "repetition of repetition": [{ type: "string", pattern: "(a{1,1000}){1,1000}" }, false],
  "repetition of nothing": [{ type: "string", pattern: "((((?:){999}){999}){999}){999}" }, false],
  "a long repetition": [{ type: "string", pattern: "[^x]{5000}" }, false],
  "a repetition of anything": [{ type: "string", pattern: "^.{99}$" }, false],
  "a pattern of a megabyte": [{ type: "string", pattern: "(a|b)".repeat(200_000) }, false],
  "a class of a megabyte": [{ type: "string", pattern: `[${wide(9).repeat(1e5)}]` }, false],
  "groups of a megabyte": [
    { type: "string", pattern: `${"(".repeat(5e5)}${")".repeat(5e5)}` },
    false,
  ],
  "plus of plus": [{ type: "string", pattern: "((a+)+)+$" }, true],
  "an automaton that doubles": [{ type: "string", pattern: "^(a|b)*a(a|b){20}$" }, false],
  "nested groups": [{ type: "string", pattern: `${"(".repeat(1500)}a${")".repeat(1500)}` }, false],
  "10 kB of alternatives": [{ type: "string", pattern: `^(${words(1500)})$` }, false],
  "a long class": [{ type: "string", pattern: `[${wide(1900)}]{9}` }, false],
  "500 patterns": [
    { properties: many(500, (i) => ({ type: "string", pattern: `^[a-z]{1,${i}}$` })) },
    false,
  ],
  "500 lengths": [{ properties: many(500, (i) => ({ type: "string", maxLength: i + 20 })) }, false],
  "500 arrays": [{ properties: many(500, (i) => ({ items: text, maxItems: i + 99 })) }, false],
  "500 names and more": [{ properties: many(500, () => text), additionalProperties: text }, true],
  "a billion items": [{ type: "array", items: text, maxItems: 1e9 }, true],
  "a billion characters": [{ type: "string", maxLength: 1e9 }, true],
  "doubled references": [chained((next) => ({ prefixItems: [next, next], items: false })), true],
  "allOf that doubles": [chained((next) => ({ allOf: [next, next] })), true],
  "anyOf that doubles": [
    chained((next, i) => ({ properties: { [`q${i}`]: text }, anyOf: [next, next] })),
    true,
  ],
  "a reference to itself": [{ $ref: "#" }, false],
  "a reference to itself that says more": [{ $ref: "#", type: "object" }, false],
  "allOf of itself": [{ allOf: [{ $ref: "#" }] }, false],
  "anyOf of itself": [{ anyOf: [{ $ref: "#" }, { type: "null" }] }, true],
  "300 branches to compare": [
    {
      oneOf: Array.from({ length: 300 }, (_, i) => ({
        enum: Array.from({ length: 30 }, (_, j) => `${i},${j}`),
      })),
    },
    false,
  ],
  "no schema": [null, false],
};

function words(count: number): string {
  return Array.from({ length: count }, (_, i) => ((i * 2654435761) >>> 0).toString(36)).join("|");
}

function wide(count: number): string {
  return String.fromCodePoint(...Array.from({ length: count }, (_, i) => 0x4e00 + 2 * i));
}

for (const [name, [schema, isEnforced]] of Object.entries(hostile)) {
  test(`${name}: ${isEnforced ? "enforced" : "refused"} in no time`, async () => {
    const start = performance.now();
    const { grammar, fault } = schemaGrammar(schema);
    expect(performance.now() - start).toBeLessThan(500);
    expect(fault === undefined).toBe(isEnforced);
    expect(grammar.length).toBeLessThan(200_000);
    const compiled = await compiler.compileGrammar(grammar);
    const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    expect(await allowed(matcher)).not.toEqual([]);
    matcher.dispose();
    compiled.dispose();
  });
}
