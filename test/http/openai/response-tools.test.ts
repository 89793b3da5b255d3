import { expect, test } from "bun:test";
import { customArguments, customInput } from "../../../src/http/openai/response-tools.ts";

const input = 'a "b"\n\\c\u2028 \u{1F600} d';

test("a custom tool's input is read from its call", () => {
  expect(customInput(customArguments(input))).toBe(input);
  for (const other of ["", "{", "[]", "{}", '{"input": 3}', '{"other": "a"}', '{"input": "\\q"}']) {
    expect([other, customInput(other)]).toEqual([other, ""]);
  }
});

test("a custom tool's input is read as far as it goes, wherever its call is cut off", () => {
  const escaped = '{"input": "a\\n\\u00e9\\"b"}';
  let longest = "";
  for (let end = 0; end <= escaped.length; end++) {
    const read = customInput(escaped.slice(0, end));
    expect('a\né"b').toStartWith(read);
    expect(read.length).toBeGreaterThanOrEqual(longest.length);
    longest = read;
  }
  expect(longest).toBe('a\né"b');
});
