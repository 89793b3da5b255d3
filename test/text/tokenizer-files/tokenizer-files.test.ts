import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { LoadError } from "../../../src/files/load-error.ts";
import { openTextModel } from "../../../src/text/text-model.ts";
import { BYTE_CHARS } from "../../../src/text/tokenizer/pre-tokenizer.ts";
import type { Tokenizer } from "../../../src/text/tokenizer/tokenizer.ts";
import type {
  BpeJson,
  TokenizerConfigJson,
  TokenizerJson,
} from "../../../src/text/tokenizer/tokenizer-json.ts";
import { folderTokenizer } from "../../../src/text/tokenizer-files/folder-tokenizer.ts";
import { tokenizerFromGguf } from "../../../src/text/tokenizer-files/gguf-tokenizer.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";
import { checksum, corpus, draws, type Golden, readGolden } from "../corpus.ts";

const { tokenizer: json } = await readGolden<{ tokenizer: TokenizerJson }>("byte-level.json");
const tiktoken = await readGolden<Record<string, Golden>>("tiktoken.json");
const rwkv = await readGolden<Golden>("rwkv.json");
const models = await readGolden<Record<string, Golden & { model: string }>>(
  "sentence-piece-models.json",
);
const asText = { controlTokens: "text" } as const;
const parsed = { controlTokens: "parse" } as const;
const root = temporaryFolder();

function folder(files: Record<string, string | Uint8Array>): string {
  const path = mkdtempSync(join(root, "model-"));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(path, name), content);
  return path;
}

const byteOf = new Map(BYTE_CHARS.map((char, byte) => [char, byte]));
const vocabulary = Object.entries((json.model as BpeJson).vocab)
  .sort((a, b) => a[1] - b[1])
  .map(([token]) => Buffer.from(Array.from(token, (char) => byteOf.get(char)!)).toString("base64"));
const ranks = vocabulary.map((token, rank) => `${token} ${rank}\n`).join("");
const tekken = {
  config: {
    pattern: "[^\\s]+|\\s+",
    default_vocab_size: vocabulary.length + 20,
    default_num_special_tokens: 20,
  },
  vocab: vocabulary.map((token_bytes, rank) => ({ rank, token_bytes, token_str: null })),
};

function ranked(file: string, config: TokenizerConfigJson = {}): Tokenizer {
  return folderTokenizer(folder({ [file]: ranks }), config);
}

describe("a megabyte of mixed text has the ids, and comes back as the text, of tiktoken", () => {
  const { "tekken.json": tekkenGolden, ...goldens } = tiktoken;

  for (const [file, golden] of Object.entries(goldens)) {
    test(`with ${file}`, () => {
      const tokenizer = ranked(file);
      expect(tokenizer.encode(golden.text, asText)).toEqual(golden.ids);
      const ids = corpus.map((text) => tokenizer.encode(text, asText));
      expect(ids.map(checksum)).toEqual(golden.crcs);
      const decoded = ids.map((each) => Bun.hash.crc32(tokenizer.decode(each)));
      expect(decoded).toEqual(golden.decoded);
    });
  }

  test("with tekken.json, whose control tokens come first", () => {
    const pattern =
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" +
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" +
      "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const content = { ...tekken, config: { ...tekken.config, pattern } };
    const tokenizer = folderTokenizer(folder({ "tekken.json": JSON.stringify(content) }), {});
    const ids = corpus.map((text) => tokenizer.encode(text, asText).map((id) => id - 20));
    expect(ids.map(checksum)).toEqual(tekkenGolden!.crcs);
    expect(tokenizer.encode("", { ...parsed, addSpecialTokens: true })).toEqual([1]);
    expect(tokenizer.encode("[INST]", parsed)).toEqual([3]);
    expect(tokenizer.namedTokens).toMatchObject({ bos_token: "<s>", eos_token: "</s>" });
    expect(tokenizer.vocabSize).toBe(vocabulary.length + 20);
  });
});

describe("the control tokens of tiktoken's files", () => {
  const first = vocabulary.length;

  test("are Kimi's reserved ones, with the names that the configuration has for some", () => {
    const tokenizer = ranked("tiktoken.model", {
      bos_token: "[BOS]",
      eos_token: "[EOS]",
      added_tokens_decoder: {
        [first]: { content: "[BOS]", special: true },
        [first + 1]: { content: "[EOS]", special: true },
        [first + 2]: { content: "<|im_end|>", special: true },
        [first + 3]: { content: "<think>", special: false },
      },
    });
    expect(tokenizer.encode("a<|im_end|>", parsed).at(-1)).toBe(first + 2);
    expect(tokenizer.encode("<|im_end|>", asText)).not.toContain(first + 2);
    expect(tokenizer.encode("<think>", asText)).toEqual([first + 3]);
    expect(tokenizer.idOf(`<|reserved_token_${first + 4}|>`)).toBe(first + 4);
    expect(tokenizer.idOf(`<|reserved_token_${first}|>`)).toBeUndefined();
    expect([tokenizer.bosId, tokenizer.eosId]).toEqual([first, first + 1]);
    expect(tokenizer.vocabSize).toBe(first + 258);
  });

  test("are those of Qwen's and Hunyuan's code", () => {
    const qwen = ranked("qwen.tiktoken");
    expect(qwen.encode("<|im_start|>", parsed)).toEqual([first + 1]);
    expect(qwen.eosId).toBe(first);
    expect(qwen.vocabSize).toBe(first + 208);
    const hunyuan = ranked("hy.tiktoken", { eos_token: "<|eos|>" });
    expect(hunyuan.encode("", { ...parsed, addSpecialTokens: true })).toEqual([first + 1]);
    expect(hunyuan.eosId).toBe(first + 3);
  });

  test("are those of GLM 4's configuration", () => {
    const added_tokens_decoder = {
      [first]: { content: "<|endoftext|>", special: true },
      [first + 1]: { content: "[gMASK]", special: true },
      [first + 2]: { content: "<sop>", special: true },
    };
    const glm = ranked("tokenizer.model", { added_tokens_decoder, eos_token: "<|endoftext|>" });
    expect(glm.encode("", { ...parsed, addSpecialTokens: true })).toEqual([first + 1, first + 2]);
  });
});

describe("RWKV's vocabulary", () => {
  const file = "rwkv_vocab_v20230424.txt";
  const hex = (token: string) => token.replaceAll(/../g, (byte) => `\\x${byte}`);
  const hexes = vocabulary.map((token) => Buffer.from(token, "base64").toString("hex"));
  const lines = hexes.map((token, i) => `${i + 1} b'${hex(token)}' ${token.length / 2}\n`);

  const expectGolden = (tokenizer: Tokenizer) => {
    expect(tokenizer.encode(rwkv.text, asText)).toEqual(rwkv.ids);
    const ids = corpus.map((text) => tokenizer.encode(text, asText));
    expect(ids.map(checksum)).toEqual(rwkv.crcs);
    expect(ids.map((each) => Bun.hash.crc32(tokenizer.decode(each)))).toEqual(rwkv.decoded);
  };

  test("gives a megabyte of mixed text the ids, and the text, of RWKV's code", () => {
    const tokenizer = folderTokenizer(folder({ [file]: lines.join("") }), {});
    expectGolden(tokenizer);
    expect(tokenizer.eosId).toBe(0);
    expect(tokenizer.encode("<|rwkv_tokenizer_end_of_text|>", parsed)).toEqual([0]);
    expect(tokenizer.encode("<|rwkv_tokenizer_end_of_text|>", asText)).not.toContain(0);
  });

  test("is the same in a GGUF file", () => {
    const metadata = new Map<string, string | readonly string[] | Int32Array | number>([
      ["tokenizer.ggml.model", "rwkv"],
      ["tokenizer.ggml.tokens", ["<s>", ...hexes.map(hex)]],
      ["tokenizer.ggml.token_type", Int32Array.of(3, ...hexes.map(() => 1))],
      ["tokenizer.ggml.eos_token_id", 0],
    ]);
    expectGolden(tokenizerFromGguf(metadata));
  });

  test("is written as Python writes texts and bytes", () => {
    const written = [
      "'\\x00'",
      '"it\'s"',
      "'\\n\\t\\\\ \\''",
      "'\\u3000é'",
      "b'\\xe3\\x80'",
      "'\\U0001f600'",
    ];
    const texts = ["\0", "it's", "\n\t\\ '", "\u3000é", undefined, "😀"];
    const sizes = [1, 4, 5, 5, 2, 4];
    const content = written.map((token, i) => `${i + 1} ${token} ${sizes[i]}\n`).join("");
    const tokenizer = folderTokenizer(folder({ [file]: content }), {});
    texts.forEach((text, i) => {
      if (text !== undefined) expect(tokenizer.encode(text, asText)).toEqual([i + 1]);
    });
  });

  test("is refused by the line that is wrong", () => {
    for (const line of ["1 'a'", "1 a 1", "1 'a' 2", "x 'a' 1"]) {
      const path = folder({ [file]: `0 'b' 1\n${line}\n` });
      expect(() => folderTokenizer(path, {})).toThrow(/rwkv_vocab_v20230424.txt: line 2: expected/);
    }
  });
});

describe("lines have the ids, and come back as the text, of SentencePiece", () => {
  for (const [name, golden] of Object.entries(models)) {
    const tokenizer = folderTokenizer(
      folder({ "tokenizer.model": Buffer.from(golden.model, "base64") }),
      {},
    );
    test(`with ${name}`, () => {
      expect(tokenizer.encode(golden.text, asText)).toEqual(golden.ids);
      const lines = corpus.map((text) => text.replaceAll(/\0|a{13,}/g, "").split("\n"));
      const ids = lines.map((each) => each.map((line) => tokenizer.encode(line, asText)));
      expect(ids.map((each) => checksum(each.flat()))).toEqual(golden.crcs);
      // Some lines start with marks of their own, of which SentencePiece strips more than one.
      const decode = (line: readonly number[]) => tokenizer.decode(line).replace(/^ +/, "");
      const decoded = ids.map((each) => each.map(decode).join("\n"));
      expect(decoded.map((text) => Bun.hash.crc32(text))).toEqual(golden.decoded);
    });
  }
});

describe("a model of SentencePiece", () => {
  const model = Buffer.from(models.bpe!.model, "base64");
  const open = (config: TokenizerConfigJson = {}) =>
    folderTokenizer(folder({ "tokenizer.model": model }), config);

  test("has a start token, unless the configuration says otherwise", () => {
    const special = { ...parsed, addSpecialTokens: true };
    expect(open().encode("", special)).toEqual([1]);
    expect(open({ add_bos_token: false, add_eos_token: true }).encode("", special)).toEqual([2]);
  });

  test("has control tokens that are never made from text", () => {
    const tokenizer = open();
    const end = tokenizer.controlTokens.get("<|im_end|>")!;
    expect(tokenizer.encode("a<|im_end|>", parsed).at(-1)).toBe(end);
    expect(tokenizer.encode("a<|im_end|>", asText)).not.toContain(end);
    expect(tokenizer.encode("<s>", asText)).not.toContain(1);
  });

  test("puts its prefix before each text between control tokens, or before the input", () => {
    const text = "a<|im_end|>a";
    const [a, end] = open().encode(text, parsed);
    expect(open().encode(text, parsed)).toEqual([a!, end!, a!]);
    const later = open({ legacy: false });
    expect(later.encode(text, parsed)).toEqual([a!, end!, later.idOf("a")!]);
  });

  test("takes the tokens that the configuration adds", () => {
    const added_tokens_decoder = { 900: { content: "<|user|>", special: true } };
    expect(open({ added_tokens_decoder }).encode("<|user|>", parsed)).toEqual([900]);
  });

  test("normalizes a long text in parts", () => {
    const text = "the ﬁrst  line e\u0301 ".repeat(5_000);
    const whole = open().encode(text, asText);
    expect(open().decode(whole)).toBe("the first line é ".repeat(5_000).trimEnd());
  });
});

test("a folder with a SentencePiece model is a text model, with stop tokens and a template", () => {
  const path = folder({
    "tokenizer.model": Buffer.from(models.bpe!.model, "base64"),
    "tokenizer_config.json": JSON.stringify({
      chat_template: "{{ messages[0].content }}<|im_end|>",
    }),
    "config.json": "{}",
  });
  const text = openTextModel(path);
  expect([...text.stopTokens].sort()).toEqual([2, text.tokenizer.idOf("<|im_end|>")!].sort());
  expect(text.chat).toBeDefined();
});

test("a template may stand in the file of a model's processor", () => {
  const path = folder({
    "tokenizer.model": Buffer.from(models.bpe!.model, "base64"),
    "tokenizer_config.json": JSON.stringify({ chat_template: "old" }),
    "chat_template.json": JSON.stringify({ chat_template: "{{ messages[0].content }}!" }),
  });
  expect(openTextModel(path).template).toBe("{{ messages[0].content }}!");
});

describe("what is not a tokenizer is refused by the file's name", () => {
  const model = Buffer.from(models.unigram!.model, "base64");

  test("where there is none", () => {
    expect(() => folderTokenizer(folder({}), {})).toThrow(/expected a tokenizer in one of token/);
  });

  test("where lines are not ranks, or there are none", () => {
    for (const [content, message] of [
      [`${ranks}?? 3\n`, /qwen.tiktoken: line \d+: expected base64 and a rank/],
      ["\n", /qwen.tiktoken: the file contains no tokens/],
    ] as const) {
      const path = folder({ "qwen.tiktoken": content });
      expect(() => folderTokenizer(path, {})).toThrow(message);
    }
  });

  test("where tekken.json has another shape", () => {
    const path = folder({ "tekken.json": JSON.stringify({ ...tekken, vocab: [{ rank: -1 }] }) });
    expect(() => folderTokenizer(path, {})).toThrow(/tekken.json: vocab.0.rank/);
  });

  test("where a model of SentencePiece is cut off or changed anywhere", () => {
    const draw = draws(7);
    for (let i = 0; i < 200; i++) {
      const changed = Buffer.from(i % 2 ? model : model.subarray(0, draw(model.length)));
      for (let j = 0; j < 20; j++) changed[draw(changed.length)] = draw(256);
      const path = folder({ "tokenizer.model": changed });
      try {
        // Changed texts and scores are as good as others.
        folderTokenizer(path, {}).encode("any text", asText);
      } catch (error) {
        expect(error).toBeInstanceOf(LoadError);
        expect((error as Error).message).toContain("tokenizer.model");
      }
      rmSync(path, { recursive: true });
    }
  });
});
