import { expect, test } from "bun:test";
import type { Constraint } from "../../src/conversation/constraint.ts";
import { enforcedCalls } from "../../src/conversation/tool-use.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { llamaJson } from "../../src/tools/formats/llama-json.ts";
import type { Enforced, ToolFormat } from "../../src/tools/syntax/format.ts";

const json: Constraint = { param: "format", format: { type: "json_schema", json_schema: {} } };
const pattern: Constraint = { param: "regex", format: { type: "regex", pattern: ".*" } };

/** What is enforced of the calls of a function with these parameters. */
function enforced(
  format: ToolFormat,
  form: Constraint | undefined,
  isRequired = false,
  parameters: Record<string, unknown> = {},
): Enforced {
  const tools = [{ name: "f", parameters }];
  const grammar = format.grammar(tools, { required: isRequired, parallel: true });
  const constraint = grammar && { param: "tools", format: grammar };
  return enforcedCalls(form, { constraint, tools, isRequired });
}

test("a grammar enforces calls behind its triggers, or all if they are required", () => {
  expect(enforced(hermes, undefined)).toEqual(["<tool_call>"]);
  expect(enforced(llamaJson, undefined)).toEqual([]);
  for (const format of [hermes, llamaJson]) {
    for (const form of [undefined, json, pattern]) expect(enforced(format, form, true)).toBe("all");
  }
  expect(enforcedCalls(json, undefined)).toEqual([]);
});

test("where a form is the alternative, calls are enforced only if it cannot start like one", () => {
  expect(enforced(hermes, json)).toBe("leading");
  expect(enforced(hermes, pattern)).toEqual([]);
});

test("calls that no parser may be able to read are not enforced", () => {
  const nested = (name: string) => ({
    properties: { a: { type: "array", items: { properties: { [name]: {} } } } },
  });
  for (const name of ["first name", 'a"b', "a=b", "a>b", "", "a,b", "(a)"]) {
    for (const parameters of [{ properties: { [name]: {} } }, nested(name)]) {
      expect([name, enforced(hermes, undefined, true, parameters)]).toEqual([name, []]);
    }
  }
  expect(enforced(hermes, undefined, true, nested("$ref.a-b/c@_ü日"))).toBe("all");
});
