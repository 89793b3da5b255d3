import { expect, test } from "bun:test";
import { MOST_SECONDS, slowest } from "../../scripts/slow-tests.ts";

test("the ten slowest files and tests are named, and those that are too slow without a reason", () => {
  const smollm2 = "12 schemas at temperature 1 give valid documents, and free rows do not notice";
  const cases = [
    ["test/a.test.ts", "&quot;a&quot; &amp; b", MOST_SECONDS + 1],
    ["test/grammar/smollm2.test.ts", smollm2, MOST_SECONDS + 2],
    ...Array.from({ length: 9 }, (_, i) => [`test/${i}.test.ts`, "quick", i / 10]),
  ];
  const suites = cases.map(
    ([file, name, seconds]) => `<testsuite name="${file}" file="${file}" time="${seconds}">
      <testsuite name="a group" file="${file}" time="90">
      <testcase name="${name}" file="${file}" time="${seconds}" /></testsuite></testsuite>`,
  );
  const { lines, unexplained } = slowest(`<testsuites tests="11">${suites.join("")}</testsuites>`);
  expect(lines).toHaveLength(22);
  expect(lines[1]).toBe("   17.0 s  test/grammar/smollm2.test.ts");
  expect(lines.slice(11, 15)).toEqual([
    "slowest tests:",
    `   17.0 s  test/grammar/smollm2.test.ts: ${smollm2} (decodes hundreds of tokens with the default model)`,
    '   16.0 s  test/a.test.ts: "a" & b (too slow: make it faster, or say why in scripts/slow-tests.ts)',
    "    0.8 s  test/8.test.ts: quick",
  ]);
  expect(lines.join()).not.toContain("test/0.test.ts");
  expect(unexplained).toBe(1);
});
