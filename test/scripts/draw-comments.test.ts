import { describe, expect, test } from "bun:test";
import { commentsIn, draw } from "../../scripts/draw-comments.ts";

const SOURCE = `// A file's first lines,
// two of them.
import x from "http://host"; // where x comes from

/**
 * A type.
 */
type T = {
  /** A member. */
  a: string;
};
// biome-ignore lint/rule: not for readers
const path = "a // b";
} // namespace x
#define ON /** Not at the beginning. */
/* The last one. */`;

describe("comments", () => {
  test("are found with their line and three lines of code", () => {
    expect(commentsIn(SOURCE)).toEqual([
      {
        line: 1,
        text: "// A file's first lines,\n// two of them.",
        code: 'import x from "http://host"; // where x comes from\n\n/**',
      },
      {
        line: 5,
        text: "/**\n * A type.\n */",
        code: "type T = {\n  /** A member. */\n  a: string;",
      },
      {
        line: 9,
        text: "  /** A member. */",
        code: "  a: string;\n};\n// biome-ignore lint/rule: not for readers",
      },
      { line: 16, text: "/* The last one. */", code: "" },
    ]);
    expect(commentsIn("const n = 1; // one\nf(n);")).toEqual([
      { line: 1, text: "const n = 1; // one", code: "f(n);" },
    ]);
  });

  test("are drawn once each, and the same for the same seed", () => {
    const all = Array.from({ length: 100 }, (_, i) => i);
    const drawn = draw(all, 60, 7);
    expect(new Set(drawn).size).toBe(60);
    expect(draw(all, 60, 7)).toEqual(drawn);
    expect(draw(all, 60, 8)).not.toEqual(drawn);
    expect(draw(all, 200, 7).toSorted((a, b) => a - b)).toEqual(all);
  });
});
