import { describe, expect, test } from "bun:test";
import { Detokenizer, type DetokenizerOptions } from "../../../src/text/tokenizer/detokenizer.ts";
import { type Tokenizer, tokenizerFromJson } from "../../../src/text/tokenizer/tokenizer.ts";
import type { DecoderJson, TokenizerJson } from "../../../src/text/tokenizer/tokenizer-json.ts";
import { corpus, draws, readGolden } from "../corpus.ts";

async function load(name: string): Promise<Tokenizer> {
  const { tokenizer } = await readGolden<{ tokenizer: TokenizerJson }>(name);
  return tokenizerFromJson(tokenizer, {});
}

const kinds: Record<string, Tokenizer> = {
  "byte-level": await load("byte-level.json"),
  "byte fallback": await load("llama.json"),
  metaspace: await load("unigram.json"),
  "word pieces": await load("word-piece.json"),
};
const byteLevel = kinds["byte-level"]!;
const fallback = kinds["byte fallback"]!;
const asText = { controlTokens: "text" } as const;

/** The chunks of a stream that gets as many ids at a time as `sizes` says. */
function stream(
  tokenizer: Tokenizer,
  ids: readonly number[],
  sizes: () => number,
  options?: DetokenizerOptions,
): string[] {
  const detokenizer = new Detokenizer(tokenizer.decoder, options);
  const chunks: string[] = [];
  for (let at = 0; at < ids.length; ) {
    const size = sizes();
    chunks.push(detokenizer.push(ids.slice(at, at + size)));
    at += size;
  }
  return [...chunks, detokenizer.flush()];
}

describe("a stream joins to what decoding the whole gives", () => {
  for (const [name, tokenizer] of Object.entries(kinds)) {
    test(`for ${name}, however it is split`, () => {
      const ids = corpus[0]!.split("\n").flatMap((line) => tokenizer.encode(line, asText));
      const draw = draws(5);
      for (const size of [() => 1, () => draw(4), () => 1 + draw(50), () => ids.length]) {
        expect(stream(tokenizer, ids, size).join("")).toBe(tokenizer.decode(ids));
      }
    });

    test(`for ${name}, of ids that no text would have`, () => {
      const draw = draws(9);
      for (let i = 0; i < 200; i++) {
        const ids = Array.from({ length: 1 + draw(12) }, () => draw(tokenizer.vocabSize + 5));
        for (const options of [{ skipControl: true }, { skipControl: false }]) {
          const chunks = stream(tokenizer, ids, () => 1, options);
          expect(chunks.join("")).toBe(tokenizer.decode(ids, options));
          for (const chunk of chunks) expect(chunk.isWellFormed()).toBe(true);
        }
      }
    });
  }
});

describe("a character that is split over tokens", () => {
  const rare = "🦖🧬龘Ӂ🫠";

  test("is sent with its last byte", () => {
    for (const tokenizer of [byteLevel, fallback]) {
      const ids = tokenizer.encode(rare, asText);
      expect(ids.length).toBeGreaterThan(Array.from(rare).length);
      const chunks = stream(tokenizer, ids, () => 1);
      expect(chunks.join("")).toBe(rare);
      expect(chunks.at(-1)).toBe("");
    }
  });

  test("and never completed becomes one U+FFFD at the end", () => {
    const bytes = [0xe2, 0x82].map(
      (byte) => fallback.idOf(`<0x${byte.toString(16).toUpperCase()}>`)!,
    );
    const letter = fallback.idOf("a")!;
    expect(stream(fallback, [letter, ...bytes], () => 1)).toEqual(["a", "", "", "\uFFFD"]);
    expect(stream(fallback, [...bytes, letter], () => 1)).toEqual(["", "", "\uFFFDa", ""]);
  });
});

describe("the space that a tokenizer puts before text", () => {
  test("is dropped from the start of a stream only", () => {
    const word = fallback.idOf("▁the")!;
    expect(stream(fallback, [word, word], () => 1)).toEqual(["the", " the", ""]);
  });

  test("is dropped after control tokens that are skipped, and kept after those that are shown", () => {
    const ids = [fallback.idOf("<s>")!, fallback.idOf("▁the")!];
    expect(stream(fallback, ids, () => 1)).toEqual(["", "the", ""]);
    expect(stream(fallback, ids, () => 1, { skipControl: false })).toEqual(["<s>", " the", ""]);
  });

  test("is dropped once, when bytes that are no text come first", () => {
    const space = fallback.idOf("<0x20>")!;
    const pieces = stream(fallback, [space, space, fallback.idOf("a")!], () => 1);
    expect(pieces).toEqual(["", " ", "a", ""]);
  });
});

test("a byte order mark is text like any other", () => {
  const ids = byteLevel.encode("\uFEFFa", asText);
  expect(byteLevel.decode(ids)).toBe("\uFEFFa");
});

test("a long stream takes time in proportion to its length", () => {
  const ids = corpus.slice(0, 8).flatMap((text) => byteLevel.encode(text, asText));
  const perToken = (count: number) => {
    const detokenizer = new Detokenizer(byteLevel.decoder);
    const begun = performance.now();
    for (let i = 0; i < count; i++) detokenizer.push([ids[i % ids.length]!]);
    return (performance.now() - begun) / count;
  };
  perToken(20_000);
  expect(perToken(200_000)).toBeLessThan(20 * perToken(5_000));
});

test("a decoder that cannot work token by token is rejected by name", async () => {
  const { tokenizer } = await readGolden<{ tokenizer: TokenizerJson }>("llama.json");
  const build = (decoder: object) => () =>
    tokenizerFromJson({ ...tokenizer, decoder: decoder as DecoderJson }, {});
  expect(build({ type: "CTC" })).toThrow("tokenizer.json: the decoder CTC is not supported");
  const strip = { type: "Strip", content: " ", start: 0, stop: 1 };
  expect(build(strip)).toThrow("tokenizer.json: the decoder with a stop Strip is not supported");
});
