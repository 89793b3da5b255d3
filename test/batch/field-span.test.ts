import { expect, test } from "bun:test";
import { fieldSpan } from "../../src/batch/field-span.ts";
import { makeRandom } from "../support/random.ts";

function field(json: string, name: string): string | undefined {
  const bytes = Buffer.from(json);
  const span = fieldSpan(bytes, name);
  return span && bytes.toString("utf8", span.start, span.end).trim();
}

test("finds the text of a field, as it is written", () => {
  expect(field('{"a":1,"body":{"x":[1e999,{}]},"c":2}', "body")).toBe('{"x":[1e999,{}]}');
  expect(field(' { "body" : "a\\"b}" } ', "body")).toBe('"a\\"b}"');
  expect(field('{"\\u0062ody":12345678901234567890}', "body")).toBe("12345678901234567890");
  expect(field('\ufeff{"body":null}', "body")).toBe("null");
});

test("finds only fields of the object itself, and of two the last", () => {
  expect(field('{"a":{"body":1},"b":["body",{"body":2}],"c":"body"}', "body")).toBeUndefined();
  expect(field('{"body":1,"x":{},"body":[2]}', "body")).toBe("[2]");
  expect(field("{}", "body")).toBeUndefined();
});

test("finds the value that JSON.parse finds, in any object", () => {
  const random = makeRandom(5);
  const texts = ["", '"', "\\", "body", "{", "}", "[,]", "é\u2028😀", ":", "\ud800"];
  const pick = () => texts[random.below(texts.length)]!;
  const value = (depth: number): unknown => {
    const kind = random.below(depth > 3 ? 3 : 5);
    if (kind === 0) return random.below(1000) / 7;
    if (kind === 1) return pick();
    if (kind === 2) return null;
    const size = random.below(4);
    if (kind === 3) return Array.from({ length: size }, () => value(depth + 1));
    return Object.fromEntries(Array.from({ length: size }, () => [pick(), value(depth + 1)]));
  };
  for (let i = 0; i < 2000; i++) {
    const object = { ...(value(4) as object), x: value(0), body: value(0), y: value(0) };
    const json = JSON.stringify(object, undefined, random.below(3));
    expect(JSON.parse(field(json, "body")!)).toEqual(JSON.parse(json).body);
  }
});
