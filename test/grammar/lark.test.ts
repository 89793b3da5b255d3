import { describe, expect, test } from "bun:test";
import { larkPattern } from "../../src/grammar/lark.ts";
import { LarkError } from "../../src/grammar/lark-terminals.ts";
import { costOf, MAX_PATTERN_STEPS, readPattern, Work } from "../../src/grammar/pattern/pattern.ts";
import { patchGrammar } from "../support/patch-grammar.ts";

const matches = (grammar: string, text: string) =>
  new RegExp(`^(?:${larkPattern(grammar)})$`, "u").test(text);

const edit = `*** Begin Patch
*** Update File: a.txt
@@ def f():
-old
+new
*** Add File: b "c".txt
+one
+
*** End Patch`;

describe("a grammar in Lark's language", () => {
  test("that constrains patches", () => {
    expect(matches(patchGrammar, edit)).toBeTrue();
    expect(matches(patchGrammar, `${edit}\n`)).toBeTrue();
    for (const wrong of ["", edit.slice(1), edit.replace("+new", "new"), `${edit}x`]) {
      expect(matches(patchGrammar, wrong)).toBeFalse();
    }
    // Its automaton is small enough to be compiled.
    const work = new Work(MAX_PATTERN_STEPS);
    expect(costOf(readPattern(`^(?:${larkPattern(patchGrammar)})$`, work))).toBeLessThan(32);
  });

  const imports = "%import common.WS_INLINE -> W\n%import common (INT)";
  const rows: [name: string, grammar: string, yes: string[], no: string[]][] = [
    ["choices on lines of their own", 'start: "a"\n  | "b"\n  | "c" "d"', ["a", "b", "cd"], ["c"]],
    ["brackets over lines", 'start: ("a"\n  "b")+', ["ab", "abab"], ["a"]],
    ["an option", 'start: "a" ["b"]', ["a", "ab"], ["b"]],
    ["repetitions", 'start: "a" ~ 2 "b" ~ 1..2', ["aab", "aabb"], ["ab", "aabbb"]],
    ["ranges", 'start: "a".."c"', ["a", "c"], ["d"]],
    ["strings in either case", 'start: "aB-"i', ["AB-", "ab-"], ["a"]],
    ["strings with operators", 'start: "a.b*(c)[d]\\\\"', ["a.b*(c)[d]\\"], ["aab*(c)[d]\\"]],
    ["escapes", 'start: "\\n\\t\\"\\x41"', ['\n\t"A'], ["n"]],
    ["expressions", "start: /[^a-c.]+\\-\\d/", ["xx-1"], ["a-1", "x.-1"]],
    ["dots that match all but a newline", "start: /a.b/", ["axb", "a\rb"], ["a\nb"]],
    ["dots that match all", "start: /a.b/s", ["a\nb"], ["ab"]],
    ["named groups", "start: /(?P<x>a)(?P<y>b)/", ["ab"], ["a"]],
    ["terminals with priorities", "start: A\nA.2: /a+/", ["aa"], [""]],
    ["marks before a rule", '?start: !x\n!x: "a"'.replace(": !x", ": x"), ["a"], ["b"]],
    ["comments", 'start: "a" // one\n# two\n// three\n  | "b"', ["a", "b"], ["one"]],
    ["imports", `start: INT (W INT)*\n${imports}`, ["1 22"], ["1 "]],
    [
      "what is ignored",
      'start: x+\nx: "a" B\nB: "b" "c"\n%ignore / +/',
      ["abc", " a bc  abc "],
      ["ab c"],
    ],
    ["a rule that is ignored", 'start: "a" "b"\nw: " "\n%ignore w', ["ab", " a b"], ["axb"]],
  ];
  test.each(rows)("has %s", (_, grammar, yes, no) => {
    for (const text of yes) expect([text, matches(grammar, text)]).toEqual([text, true]);
    for (const text of no) expect([text, matches(grammar, text)]).toEqual([text, false]);
  });

  const large = `r: "${"a".repeat(3980)}"`;
  const wrong: [says: string, grammar: string][] = [
    ["contains itself (a)", 'start: a\na: "(" a ")" | "x"'],
    ["no rule start", 'begin: "a"'],
    ["no rule b", "start: b"],
    ["two rules start", 'start: "a"\nstart: "b"'],
    ["%declare", 'start: "a"\n%declare X'],
    ["common.NOTHING", 'start: "a"\n%import common.NOTHING'],
    ["templates", 'start: x{"a"}\nx{y}: y'],
    ["flags", "start: /a/i"],
    ["not written in Lark's language", "start: 'a'"],
    ["not written in Lark's language", 'start "a"'],
    ["not written in Lark's language", 'start: "a" )'],
    ["too large", `start: ${'"aaaaaaaaaaaaaaaa" '.repeat(400)}`],
    ["too large", "x".repeat(70_000)],
    ["nested too deep", `start: ${"(".repeat(200)}"a"${")".repeat(200)}`],
    // What follows the node that makes it too large is not read, as each may add 4,000 characters.
    ["too large", `start: ${"r ".repeat(1000)}missing\n${large}`],
    ["too large", `start: ${"r | ".repeat(1000)}missing\n${large}`],
    ["too large", `start: "a"\n${"%ignore r\n".repeat(1000)}%ignore missing\n${large}`],
    // Each rule doubles the one before.
    [
      "too large",
      `start: r40\nr0: "a"\n${Array.from({ length: 40 }, (_, i) => `r${i + 1}: r${i} r${i}`).join("\n")}`,
    ],
  ];
  test.each(wrong)("is refused: %s", (says, grammar) => {
    const read = () => larkPattern(grammar);
    expect(read).toThrow(LarkError);
    expect(read).toThrow(says);
  });
});
