// With the real engine, byte by byte: what is written for it lets pass what it should, and nothing else.

import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import { GrammarCompiler, GrammarMatcher, TokenizerInfo } from "@mlc-ai/web-xgrammar";
import { clientGrammar } from "../../src/grammar/client-grammar.ts";
import {
  alternativesRule,
  textParts,
  textsGrammar,
} from "../../src/grammar/pattern/alternatives.ts";
import { regexGrammar } from "../../src/grammar/pattern/pattern.ts";
import { BYTE_CHARS } from "../../src/text/tokenizer/pre-tokenizer.ts";
import { makeRandom } from "../support/random.ts";

const STOP = 256;
const tokens = [...BYTE_CHARS, ""];
const info = await TokenizerInfo.createTokenizerInfo(tokens, "byte_level", false, STOP + 1, [STOP]);
const compiler = await GrammarCompiler.createGrammarCompiler(info, false);
const random = makeRandom(7);
const pick = <T>(list: readonly T[]): T => list[random.below(list.length)]!;
const some = <T>(most: number, make: () => T): T[] =>
  Array.from({ length: 1 + random.below(most) }, make);

/** Those of these texts that it lets pass. */
async function passing(grammar: string, texts: Iterable<string>): Promise<string[]> {
  const compiled = await compiler.compileGrammar(grammar);
  const matcher = await GrammarMatcher.createGrammarMatcher(compiled, [STOP]);
  const passed = Array.from(texts).filter((text) => {
    matcher.reset();
    return [...Buffer.from(text), STOP].every((token) => matcher.acceptToken(token));
  });
  matcher.dispose();
  compiled.dispose();
  return passed;
}

/** All texts of these letters, up to a length. */
function textsOf(letters: readonly string[], length: number): string[] {
  if (length === 0) return [""];
  const shorter = textsOf(letters, length - 1);
  const longest = shorter.filter((text) => [...text].length === length - 1);
  return [...shorter, ...longest.flatMap((text) => letters.map((letter) => text + letter))];
}

const short = textsOf(["a", "b", "c"], 5);

test("of some texts, those and no others", async () => {
  for (const letters of [
    ["a", "b", "c"],
    ["é", "è", '"', "\\", "\n"],
  ]) {
    const all = textsOf(letters, 4);
    for (let i = 0; i < 100; i++) {
      const texts = new Set(some(12, () => pick(all)));
      const passed = await passing(textsGrammar([...texts]), all);
      expect(new Set(passed)).toEqual(texts);
    }
  }
});

test("the bytes of texts share their strings", () => {
  const strings = () => {
    Bun.gc(true);
    return heapStats().objectTypeCounts.string ?? 0;
  };
  const texts = Array.from({ length: 100 }, (_, i) => "é\0a".repeat(i));
  const before = strings();
  const parts = texts.map(textParts);
  expect(strings() - before).toBeLessThan(1000);
  expect(parts.flat().length).toBe(4 * 4950);
});

test("texts that are each other's beginnings, however many", async () => {
  const texts = Array.from({ length: 300 }, (_, i) => `${"a".repeat(i)}b`);
  expect(await passing(textsGrammar(texts), [...texts, "", "a", "ba"])).toEqual(texts);
});

test("alternatives that begin with the same rule or class go on as each of them does", async () => {
  const all = [["x", '"ab"'], ["x", '"b"', "x"], ["[ab]", '"c"'], ["[ab]", '"a"'], ['"c"'], []];
  const grammar = `${alternativesRule("root", all)}x ::= "cc"\n`;
  const expected = ["", "ac", "bc", "aa", "ba", "c", "ccab", "ccbcc"];
  expect(new Set(await passing(grammar, short))).toEqual(new Set(expected));
});

/** A grammar in EBNF, and the texts of up to five letters that it means. */
function randomGrammar(): { source: string; texts: Set<string> } {
  const rules: string[] = [];
  const languages: string[][] = [];
  const joined = (before: readonly string[], after: readonly string[]) => [
    ...new Set(before.flatMap((a) => after.map((b) => a + b)).filter((text) => text.length <= 5)),
  ];
  for (let rule = 3; rule >= 0; rule--) {
    const texts = new Set<string>();
    const alternatives = some(4, () => {
      let language = [""];
      const parts = some(3, () => {
        const word = some(3, () => pick(["a", "b", "c"])).join("");
        const later = rule < 3 ? rule + 1 + random.below(3 - rule) : 0;
        let [part, own] = pick<[string, string[]]>([
          [`"${word}"`, [word]],
          [`"${word}"`, [word]],
          ["[ab]", ["a", "b"]],
          ["[bc]", ["b", "c"]],
          [`("${word}" | "ca")`, [word, "ca"]],
          later ? [`r${later}`, languages[later]!] : ['"a"', ["a"]],
        ]);
        const [sign, most] = pick([
          ["", 1],
          ["", 1],
          ["", 1],
          ["?", 1],
          ["*", 5],
        ] as const);
        if (sign !== "") {
          const once = own;
          own = [""];
          for (let i = 0; i < most; i++) own = [...new Set([...own, ...joined(own, once)])];
          part += sign;
        }
        language = joined(language, own);
        return part;
      });
      for (const text of language) texts.add(text);
      return parts.join(" ");
    });
    languages[rule] = [...texts];
    rules.push(`${rule === 0 ? "root" : `r${rule}`} ::= ${alternatives.join(" | ")}`);
  }
  return { source: rules.toReversed().join("\n"), texts: new Set(languages[0]) };
}

test("of a client's grammar, what it means", async () => {
  for (let i = 0; i < 100; i++) {
    const { source, texts } = randomGrammar();
    const passed = await passing(await clientGrammar(source), short);
    expect([source, new Set(passed)]).toEqual([source, texts]);
  }
});

test("a client's grammar may be written in every way that there is", async () => {
  const source = `root ::= "(" root ")" | word.two rest? # nested
word.two ::= [a-c]{2} | [^a-c\\]"] | "\\x41\\n\\"\\u00e9" (= "q")
rest ::= ("-" [0-9]+){1,2}`;
  const good = ["ab", "((x))", "(ab-12)", "é-1-22", 'A\n"é', "A", "😀"];
  const bad = ["", "a", "(ab", "]", '"', "ab-", "ab-1-2-3", "A\n", "xx"];
  expect(await passing(await clientGrammar(source), [...good, ...bad])).toEqual(good);
  await expect(clientGrammar("root ::= [é-ü]")).rejects.toThrow("beyond ASCII");
  await expect(clientGrammar('root ::= TagDispatch(("a", x))\nx ::= "b"')).rejects.toThrow(
    "TagDispatch",
  );
});

test("of an expression, what it matches as a whole", async () => {
  const atoms = "a b ab [ab] [^a] . c? (a|bc)* (b|ab|abb) b{2} ^a c$".split(" ");
  for (let i = 0; i < 150; i++) {
    const source = some(3, () => some(3, () => pick(atoms)).join("")).join("|");
    const whole = new RegExp(`^(?:${source})$`, "u");
    let grammar: string | undefined;
    try {
      grammar = regexGrammar(source);
    } catch (error) {
      expect((error as Error).message).toBe("the expression matches no text");
    }
    const expected = short.filter((text) => whole.test(text));
    expect([source, grammar ? await passing(grammar, short) : []]).toEqual([source, expected]);
  }
  const odd = ["é", "è", "中", "😀", "\n", "\u00a0", "-", "{", "}", "a{2", "{a}", '"', "\\"];
  for (const source of ". [^é] [é-ü] \\s \\S [一-龥] [😀-😂] \\- a{2 {a} \\}".split(" ")) {
    const strict = source
      .replace("\\-", "-")
      .replace(/^a\{2$/, "a\\{2")
      .replace("{a}", "\\{a\\}");
    const whole = new RegExp(`^(?:${strict})$`, "u");
    const expected = odd.filter((text) => whole.test(text));
    expect([source, await passing(regexGrammar(source), odd)]).toEqual([source, expected]);
  }
});
