import { describe, expect, test } from "bun:test";
import { type Tokenizer, tokenizerFromJson } from "../../../src/text/tokenizer/tokenizer.ts";
import type {
  PreTokenizerJson,
  TokenizerJson,
} from "../../../src/text/tokenizer/tokenizer-json.ts";
import { checksum, corpus, draws, type Golden, millisecondsOf, readGolden } from "../corpus.ts";

const byteLevel = await readGolden<{
  tokenizer: TokenizerJson;
  variants: Record<string, Golden & { pre_tokenizer: PreTokenizerJson }>;
}>("byte-level.json");
const llama = await readGolden<{ tokenizer: TokenizerJson; golden: Golden }>("llama.json");
const unigram = await readGolden<{ tokenizer: TokenizerJson; golden: Golden }>("unigram.json");
const wordPiece = await readGolden<{ tokenizer: TokenizerJson; golden: Golden }>("word-piece.json");

const chat = tokenizerFromJson(byteLevel.tokenizer, { eos_token: { content: "<|im_end|>" } });
const spaced = tokenizerFromJson(llama.tokenizer, { bos_token: "<s>", eos_token: "</s>" });
const asText = { controlTokens: "text" } as const;
const parsed = { controlTokens: "parse" } as const;

function expectGolden(tokenizer: Tokenizer, golden: Golden): void {
  expect(tokenizer.encode(golden.text, parsed)).toEqual(golden.ids);
  const ids = corpus.map((text) => tokenizer.encode(text, parsed));
  expect(ids.map(checksum)).toEqual(golden.crcs);
  const decoded = ids.map((each) => tokenizer.decode(each, { skipControl: false }));
  expect(decoded.map((text) => Bun.hash.crc32(text))).toEqual(golden.decoded);
}

describe("a megabyte of mixed text has the ids, and comes back as the text, of the Rust library", () => {
  for (const [name, golden] of Object.entries(byteLevel.variants)) {
    test(`with byte-level BPE: ${name}`, () => {
      const json = { ...byteLevel.tokenizer, pre_tokenizer: golden.pre_tokenizer };
      expectGolden(tokenizerFromJson(json, {}), golden);
    });
  }
  test("with SentencePiece BPE and byte fallback", () => {
    expectGolden(spaced, llama.golden);
  });
  test("with unigram", () => {
    expectGolden(tokenizerFromJson(unigram.tokenizer, {}), unigram.golden);
  });
  test("with WordPiece", () => {
    expectGolden(tokenizerFromJson(wordPiece.tokenizer, {}), wordPiece.golden);
  });
});

describe("control tokens", () => {
  const end = chat.idOf("<|im_end|>")!;

  test("are one id where they are parsed and many where they are text", () => {
    const [a, b] = [chat.encode("a", asText), chat.encode("b", asText)];
    expect(chat.encode("a<|im_end|>b", parsed)).toEqual([...a, end, ...b]);
    expect(chat.encode("a<|im_end|>b", asText)).not.toContain(end);
    expect(chat.decode(chat.encode("a<|im_end|>b", asText))).toBe("a<|im_end|>b");
  });

  test("are text at the places named and tokens at all others", () => {
    const text = "<|im_end|><|im_end|>";
    const ids = chat.encode(text, { controlTokens: { parseExceptAt: new Set([0]) } });
    expect(ids).toEqual([...chat.encode("<|im_end|>", asText), end]);
  });

  test("are never made from text, though merges or scores lead to them", () => {
    const merges = ["< s", "<s >"];
    const vocab = { "<": 0, s: 1, ">": 2, "<s": 3, "<s>": 4 };
    const added_tokens = [{ id: 4, content: "<s>", special: true }];
    const bpe = tokenizerFromJson({ model: { type: "BPE", vocab, merges }, added_tokens }, {});
    expect(bpe.encode("<s>", parsed)).toEqual([4]);
    expect(bpe.encode("<s>", asText)).toEqual([3, 2]);

    const scored = Object.keys(vocab).map((text) => [text, text === "<s>" ? 0 : -5] as const);
    const model = { type: "Unigram", vocab: scored, unk_id: 0 } as const;
    const one = tokenizerFromJson({ model, added_tokens }, {});
    expect(one.encode("<s>", parsed)).toEqual([4]);
    expect(one.encode("<s>", asText)).toEqual([3, 2]);
  });

  test("that are spelled like turn marks count as such without being flagged", () => {
    const vocab = { "<": 0, "｜": 1, U: 2, ">": 3 };
    const added_tokens = [{ id: 4, content: "<｜U｜>", special: false }];
    const model = { type: "BPE", vocab, merges: [] } as const;
    const tokenizer = tokenizerFromJson({ model, added_tokens }, {});
    expect(tokenizer.encode("<｜U｜>", asText)).toEqual([0, 1, 2, 1, 3]);
  });

  test("are left out of decoded text unless asked for", () => {
    const ids = chat.encode("a<|im_end|>", parsed);
    expect(chat.decode(ids)).toBe("a");
    expect(chat.decode(ids, { skipControl: false })).toBe("a<|im_end|>");
  });
});

describe("added tokens", () => {
  const model = { type: "BPE", vocab: { a: 0, " ": 1, "\n": 2, "<": 3 }, merges: [] } as const;
  const build = (token: object) =>
    tokenizerFromJson({ model, added_tokens: [{ id: 9, content: "<", ...token }] }, {});

  test("take the blanks beside them where they say so", () => {
    expect(build({}).encode("a < \na", asText)).toEqual([0, 1, 9, 1, 2, 0]);
    expect(build({ lstrip: true }).encode("a < \na", asText)).toEqual([0, 9, 1, 2, 0]);
    expect(build({ rstrip: true }).encode("a < \na", asText)).toEqual([0, 1, 9, 0]);
  });

  test("are found in time though there are thousands, the longest first", () => {
    const added_tokens = Array.from({ length: 6_000 }, (_, i) => ({
      id: 9 + i,
      content: `<unused${i}>`,
    }));
    const runs = ["<", "<<", "<<<"].map((content, i) => ({ id: 7_000 + i, content }));
    const json = { model, added_tokens: [...added_tokens, ...runs] };
    const tokenizer = tokenizerFromJson(json, {});
    expect(tokenizer.encode("<unused42><<<<<unused5", asText)).toEqual([51, 7002, 7001]);
    const text = "<<<".repeat(300_000);
    const taken = millisecondsOf(() => {
      expect(tokenizer.encode(text, asText).length).toBe(300_000);
    });
    expect(taken).toBeLessThan(3_000);
  });

  test("that are single words are not found inside of others", () => {
    const tokenizer = build({ single_word: true });
    expect(tokenizer.encode("a<", asText)).toEqual([0, 3]);
    expect(tokenizer.encode("a <", asText)).toEqual([0, 1, 9]);
  });
});

describe("any input", () => {
  test("with lone surrogates is encoded as with U+FFFD", () => {
    for (const tokenizer of [chat, spaced]) {
      const ids = tokenizer.encode("a\uD800b\uDC00", asText);
      expect(ids).toEqual(tokenizer.encode("a\uFFFDb\uFFFD", asText));
    }
  });

  test("made of random code units comes back well-formed from a byte-level tokenizer", () => {
    const draw = draws(7);
    for (let i = 0; i < 300; i++) {
      const units = Array.from({ length: draw(20) }, () => (draw(2) ? draw(128) : draw(0x10000)));
      const text = String.fromCharCode(...units);
      expect(chat.decode(chat.encode(text, asText))).toBe(text.toWellFormed());
    }
  });

  test("of one endless word is encoded in time", () => {
    const word = "ab".repeat(200_000);
    const taken = millisecondsOf(() => {
      expect(chat.decode(chat.encode(word, asText))).toBe(word);
    });
    expect(taken).toBeLessThan(3_000);
  });

  test("that is empty has no ids but the tokenizer's own", () => {
    expect(spaced.encode("", asText)).toEqual([]);
    expect(spaced.encode("", { ...asText, addSpecialTokens: true })).toEqual([1]);
    expect(spaced.decode([])).toBe("");
  });
});

test("a tokenizer tells its size, its start and its end", () => {
  expect([spaced.vocabSize, spaced.bosId, spaced.eosId]).toEqual([1200, 1, 2]);
  expect(spaced.controlTokens).toEqual(
    new Map([
      ["<unk>", 0],
      ["<s>", 1],
      ["</s>", 2],
    ]),
  );
  expect(spaced.namedTokens).toEqual({ bos_token: "<s>", eos_token: "</s>" });
  expect(chat.namedTokens).toEqual({ eos_token: "<|im_end|>" });
  expect(chat.tokenOf(chat.eosId!)).toBe("<|im_end|>");
});

test("an unsupported step is rejected by name", () => {
  const pre_tokenizer = { type: "UnicodeScripts" } as unknown as PreTokenizerJson;
  expect(() => tokenizerFromJson({ ...llama.tokenizer, pre_tokenizer }, {})).toThrow(
    "tokenizer.json: the pre-tokenizer UnicodeScripts is not supported",
  );
});
