// Long texts: encoded in bounded steps, in time that grows with their length, to the same ids as in one piece.
import { describe, expect, test } from "bun:test";
import { TokenIdBuffer } from "../../../src/text/tokenizer/token-ids.ts";
import {
  TooLongError,
  tokenizerFromJson,
  type WorkSizes,
} from "../../../src/text/tokenizer/tokenizer.ts";
import type {
  PreTokenizerJson,
  TokenizerJson,
} from "../../../src/text/tokenizer/tokenizer-json.ts";
import { ggufPreTokenizer } from "../../../src/text/tokenizer-files/gguf-pre-tokenizers.ts";
import { longTexts } from "../../support/long-texts.ts";
import { makeRandom } from "../../support/random.ts";
import { millisecondsOf, readGolden } from "../corpus.ts";

const { tokenizer: byteLevel, variants } = await readGolden<{
  tokenizer: TokenizerJson;
  variants: Record<string, { pre_tokenizer: PreTokenizerJson }>;
}>("byte-level.json");
const golden = async (name: string) =>
  (await readGolden<{ tokenizer: TokenizerJson }>(`${name}.json`)).tokenizer;

const normalized = (type: string) => ({ ...byteLevel, normalizer: { type } });
const tokenizers: Record<string, TokenizerJson> = {
  ...Object.fromEntries(
    Object.entries(variants).map(([name, { pre_tokenizer }]) => [
      name,
      { ...byteLevel, pre_tokenizer },
    ]),
  ),
  "in one piece": { ...byteLevel, pre_tokenizer: { type: "ByteLevel", use_regex: false } },
  "NFC in lower case": {
    ...byteLevel,
    normalizer: { type: "Sequence", normalizers: [{ type: "NFC" }, { type: "Lowercase" }] },
  },
  NFKD: normalized("NFKD"),
  Precompiled: normalized("Precompiled"),
  SentencePiece: await golden("llama"),
  unigram: await golden("unigram"),
  WordPiece: await golden("word-piece"),
};
const asText = { controlTokens: "text" } as const;
const inOnePiece: WorkSizes = { part: Infinity, piece: Infinity };

describe("the ids of a text do not depend on how much of it is encoded at a time", () => {
  const runs = [" ", "\n", "- ", ..."a the 7 😀 中 e\u0301\u0323 ΑΣ ' <|im_end|> ..".split(" ")];

  function randomText(seed: number): string {
    const random = makeRandom(seed);
    const parts = Array.from({ length: 12 }, () => {
      const run = runs[random.below(runs.length)]!;
      if (random.chance(0.5)) return run.repeat(1 + random.below(60));
      const units = Array.from({ length: random.below(40) }, () =>
        random.chance(0.7) ? 97 + random.below(26) : random.below(0x3000),
      );
      return String.fromCharCode(...units);
    });
    return parts.join("");
  }

  test.each(Object.entries(tokenizers))("with %s", (_, json) => {
    const plain = tokenizerFromJson(json, {}, inOnePiece);
    const small = [1, 3, 8, 40].map((size) =>
      tokenizerFromJson(json, {}, { part: size, piece: 1, window: size }),
    );
    for (let seed = 0; seed < 30; seed++) {
      const text = randomText(seed);
      const ids = plain.encode(text, asText);
      for (const tokenizer of small) expect(tokenizer.encode(text, asText)).toEqual(ids);
    }
  });

  test.each(Object.entries(tokenizers))("nor those of long runs and noise, with %s", (_, json) => {
    const plain = tokenizerFromJson(json, {}, inOnePiece);
    const usual = tokenizerFromJson(json, {});
    for (const text of Object.values(longTexts(20_000))) {
      expect(usual.encode(text, asText)).toEqual(plain.encode(text, asText));
    }
  });
});

describe("a text is encoded in time", () => {
  test("that has nothing but combining marks", () => {
    const tokenizer = tokenizerFromJson(normalized("NFC"), {});
    const text = "\u0301\u0323".repeat(100_000);
    const sorted = "\u0323".repeat(100_000) + "\u0301".repeat(100_000);
    const taken = millisecondsOf(() => {
      const ids = tokenizer.encode(text, asText);
      expect(ids).toEqual(tokenizerFromJson(byteLevel, {}).encode(sorted, asText));
    });
    expect(taken).toBeLessThan(15_000);
  });

  test("that has many blanks before a character, with every pattern of GGUF", () => {
    const text = `${" ".repeat(100_000)}中`;
    for (const name of ["gpt-2", "llama3", "gpt-4o", "deepseek-llm", "deepseek-v3", "bloom"]) {
      const pretokenizers = ggufPreTokenizer(name).patterns.map(
        (Regex) => ({ type: "Split", pattern: { Regex }, behavior: "Isolated" }) as const,
      );
      const pre_tokenizer = { type: "Sequence", pretokenizers } as const;
      const tokenizer = tokenizerFromJson({ ...byteLevel, pre_tokenizer }, {});
      expect(millisecondsOf(() => tokenizer.encode(text, asText))).toBeLessThan(15_000);
    }
  });
});

test("a long text is encoded in many steps", () => {
  for (const json of Object.values(tokenizers)) {
    const tokenizer = tokenizerFromJson(json, {});
    for (const text of ["a".repeat(100_000), "a b ".repeat(25_000)]) {
      const ids = new TokenIdBuffer(1);
      let steps = 0;
      for (const _ of tokenizer.encodeSteps(text, asText, ids)) steps++;
      // A word that is too long for WordPiece is one unknown token.
      if (ids.length > 1) expect(steps).toBeGreaterThan(10);
    }
  }
});

test("a text with more characters than a context has room for is rejected at once", () => {
  const tokenizer = tokenizerFromJson(byteLevel, {});
  const text = "a".repeat(10 * tokenizer.longestToken + 1);
  const ids = new TokenIdBuffer(1);
  const steps = tokenizer.encodeSteps(text, { ...asText, maxTokens: 10 }, ids);
  expect(() => steps.next()).toThrow(TooLongError);
  expect(ids.length).toBe(0);
});
