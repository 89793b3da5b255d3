import { describe, expect, test } from "bun:test";
import { defaultModelPath } from "../../../ffi/native.ts";
import { readGguf } from "../../../src/files/gguf.ts";
import type { Tokenizer } from "../../../src/text/tokenizer/tokenizer.ts";
import type { BpeJson, TokenizerJson } from "../../../src/text/tokenizer/tokenizer-json.ts";
import {
  type GgufMetadata,
  ggufChatTemplate,
  tokenizerFromGguf,
} from "../../../src/text/tokenizer-files/gguf-tokenizer.ts";
import { checksum, corpus, readGolden } from "../corpus.ts";

interface Golden {
  text: string;
  ids: number[];
  crcs: number[];
  decoded?: number[];
}

interface SentencePiece {
  tokens: string[];
  scores: number[];
  token_type: number[];
  golden: Golden;
}

const { tokenizer: json } = await readGolden<{ tokenizer: TokenizerJson }>("byte-level.json");
const byteLevel = await readGolden<Record<string, Golden>>("gguf-byte-level.json");
const sentencePiece =
  await readGolden<Record<"bpe" | "unigram", SentencePiece>>("sentence-piece.json");
const asText = { controlTokens: "text" } as const;
const parsed = { controlTokens: "parse" } as const;

function metadata(fields: Record<string, unknown>): GgufMetadata {
  const entries = Object.entries(fields).map(([name, value]) => [`tokenizer.ggml.${name}`, value]);
  return new Map(entries as [string, string][]);
}

/** The tokenizer of tokenizer.json as a converter to GGUF would store it. */
function converted(pre: string | undefined): GgufMetadata {
  const model = json.model as BpeJson;
  const tokens: string[] = [];
  for (const [text, id] of Object.entries(model.vocab)) tokens[id] = text;
  const types = new Int32Array(tokens.length + json.added_tokens!.length).fill(1);
  for (const { id, content, special } of json.added_tokens!) {
    tokens[id] = content;
    types[id] = special ? 3 : 4;
  }
  const merges = model.merges.map((merge) => (typeof merge === "string" ? merge : merge.join(" ")));
  return metadata({ model: "gpt2", tokens, token_type: types, merges, ...(pre && { pre }) });
}

/** Of the corpus, the texts that `isRead` says. */
function expectGolden(
  tokenizer: Tokenizer,
  golden: Golden,
  isRead: (index: number) => boolean = () => true,
): void {
  expect(tokenizer.encode(golden.text, parsed)).toEqual(golden.ids);
  const some = <T>(all: readonly T[]) => all.filter((_, i) => isRead(i));
  const ids = some(corpus).map((text) => tokenizer.encode(text, parsed));
  expect(ids.map(checksum)).toEqual(some(golden.crcs));
  const decoded = ids.map((each) => tokenizer.decode(each, { skipControl: false }));
  expect(decoded.map((text) => Bun.hash.crc32(text))).toEqual(some(golden.decoded!));
}

/** text.py says why some text is left out, and why by lines. */
function expectSentencePieceGolden(tokenizer: Tokenizer, golden: Golden): void {
  const encode = (text: string) => {
    const lines = text.replaceAll(/\0|<think>/g, "").split("\n");
    return lines.flatMap((line) => tokenizer.encode(line, parsed));
  };
  expect(encode(golden.text)).toEqual(golden.ids);
  expect(corpus.map((text) => checksum(encode(text)))).toEqual(golden.crcs);
}

describe("byte-level BPE has the ids of the Rust library", () => {
  for (const [at, [pre, golden]] of Object.entries(byteLevel).entries()) {
    test(`with the pre-tokenizer ${pre}`, () => {
      // All texts are made of the same snippets: each has a third of them.
      expectGolden(tokenizerFromGguf(converted(pre)), golden, (i) => i % 3 === at % 3);
    });
  }

  test("with SmolLM2's own vocabulary", async () => {
    const { metadata: smol } = readGguf(defaultModelPath());
    const tokenizer = tokenizerFromGguf(smol);
    expectGolden(tokenizer, await readGolden<Golden>("smollm2.json"));
    expect([tokenizer.vocabSize, tokenizer.bosId, tokenizer.eosId]).toEqual([49_152, 1, 2]);
    expect(ggufChatTemplate(smol)).toContain("<|im_start|>");
  });
});

describe("a llama model", () => {
  const { golden, ...fields } = sentencePiece.bpe;
  const build = (more: object = {}) =>
    tokenizerFromGguf(
      metadata({ model: "llama", bos_token_id: 1, eos_token_id: 2, ...fields, ...more }),
    );

  test("has SentencePiece's own ids", () => {
    expectSentencePieceGolden(build(), golden);
  });

  test("begins with its start token and with a space, unless the file says no", () => {
    const hi = build().encode("hi", asText);
    expect(build().encode("hi", { ...asText, addSpecialTokens: true })).toEqual([1, ...hi]);
    expect(build().decode(hi)).toBe("hi");
    const bare = build({ add_bos_token: false, add_space_prefix: false });
    const ids = bare.encode("hi", { ...asText, addSpecialTokens: true });
    expect(ids).toEqual(bare.encode("hi", asText));
    expect(bare.decode(ids)).toBe("hi");
    expect(bare.decode(hi)).toBe(" hi");
  });

  test("finds its user-defined tokens in text and its control tokens only where they are parsed", () => {
    const [tool, end] = ["<tool_call>", "</s>"].map((text) => fields.tokens.indexOf(text));
    expect(build().encode("<tool_call>", asText)).toContain(tool!);
    expect(build().encode("</s>", asText)).not.toContain(end!);
    expect(build().encode("</s>", parsed)).toEqual([end!]);
  });
});

test("a gemma4 model has the ids that the same merges give a llama model", () => {
  const { golden, ...fields } = sentencePiece.bpe;
  const common = { ...fields, add_space_prefix: false, add_bos_token: false };
  const scoreOf = new Map(fields.tokens.map((text, id) => [text, fields.scores[id]!]));
  const pairs = fields.tokens.flatMap((text) =>
    Array.from({ length: text.length - 1 }, (_, i) => [text.slice(0, i + 1), text.slice(i + 1)]),
  );
  const merges = pairs
    .filter((pair) => pair.every((part) => scoreOf.has(part)))
    .sort((a, b) => scoreOf.get(b.join(""))! - scoreOf.get(a.join(""))!)
    .map((pair) => pair.join(" "));
  const { scores: _, ...unscored } = common;
  const tokenizer = tokenizerFromGguf(metadata({ model: "gemma4", ...unscored, merges }));
  const other = tokenizerFromGguf(metadata({ model: "llama", ...common }));
  for (const text of [golden.text, ...corpus]) {
    const ids = tokenizer.encode(text, asText);
    expect(ids).toEqual(other.encode(text, asText));
    expect(tokenizer.decode(ids)).toBe(other.decode(ids));
  }
});

test("a unigram model has SentencePiece's own ids", () => {
  const { golden, ...fields } = sentencePiece.unigram;
  const tokenizer = tokenizerFromGguf(metadata({ model: "t5", ...fields }));
  expectSentencePieceGolden(tokenizer, golden);
});

describe("what is not supported is rejected by name", () => {
  test("a pre-tokenizer", () => {
    expect(() => tokenizerFromGguf(converted("klingon"))).toThrow(
      'GGUF: the pre-tokenizer "klingon" is not supported',
    );
  });

  test("a model", () => {
    const fields = metadata({ model: "plamo2", tokens: [] });
    expect(() => tokenizerFromGguf(fields)).toThrow(
      'GGUF: the tokenizer model "plamo2" is not supported',
    );
  });

  test("a missing field", () => {
    expect(() => tokenizerFromGguf(metadata({ model: "gpt2" }))).toThrow(
      "GGUF: tokenizer.ggml.tokens is missing",
    );
  });
});
