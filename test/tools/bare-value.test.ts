import { expect, test } from "bun:test";
import { bareValue } from "../../src/tools/syntax/bare-value.ts";

const marks = { begin: "<a>", end: "</a>" };
const contentOf = (schema: Record<string, unknown>) => bareValue(schema, marks).content;

test("a bare string is any text, or what a pattern of the whole text matches", () => {
  expect(contentOf({ type: "string" })).toEqual({ type: "any_text" });
  expect(contentOf({ type: "string", pattern: "^(?:a\nb)$" })).toEqual({
    type: "regex",
    pattern: "^(?:a\nb)$",
  });
  // It may match anywhere in the text.
  expect(contentOf({ type: "string", pattern: "a" })).toEqual({ type: "any_text" });
});
