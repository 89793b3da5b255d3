// Tokenizers from tiktoken files: a vocabulary of byte sequences, each with its rank. Neighboring tokens whose
// concatenation is a token are merged, lowest rank first. The split pattern and the control tokens are not in the
// files but in the models' Python code, so they are in a table here.
import { LoadError, quoted } from "../../files/load-error.ts";
import { bpeModel } from "../tokenizer/bpe.ts";
import { BYTE_CHARS, byteLevelSplits } from "../tokenizer/pre-tokenizer.ts";
import { HAN_APART, words } from "../tokenizer/split-patterns.ts";
import { buildTokenizer, type Tokenizer } from "../tokenizer/tokenizer.ts";
import {
  type AddedTokenJson,
  addedTokensOf,
  type TokenizerConfigJson,
} from "../tokenizer/tokenizer-json.ts";
import { scoredMerges } from "./sentence-piece.ts";

type Family = {
  pattern: string;
  /** Whether text is normalized to NFC first, as in Qwen's code. */
  isComposed?: true;
  /** Returns the control tokens after the vocabulary; the first one has the id `first`. */
  control?: (first: number) => readonly string[];
  /** Special tokens prepended to a text that is not a chat. */
  before?: readonly string[];
  /** Named tokens that tokenizer_config.json may override. */
  named?: TokenizerConfigJson;
};

const extras = (count: number) => Array.from({ length: count }, (_, i) => `<|extra_${i}|>`);

/** Tokenizer families by file name. */
const families: ReadonlyMap<string, Family> = new Map<string, Family>([
  [
    // Kimi. tokenizer_config.json names some of the reserved tokens.
    "tiktoken.model",
    {
      pattern: HAN_APART,
      control: (first) => Array.from({ length: 258 }, (_, i) => `<|reserved_token_${first + i}|>`),
      named: { bos_token: "[BOS]", eos_token: "[EOS]" },
    },
  ],
  [
    "qwen.tiktoken",
    {
      pattern: words("\\p{N}"),
      isComposed: true,
      control: () => ["<|endoftext|>", "<|im_start|>", "<|im_end|>", ...extras(205)],
      named: { eos_token: "<|endoftext|>" },
    },
  ],
  [
    // Hunyuan.
    "hy.tiktoken",
    {
      pattern: words("\\p{N}"),
      isComposed: true,
      control: () => [
        ...["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"],
        ...extras(205),
      ],
      before: ["<|startoftext|>"],
      named: { bos_token: "<|startoftext|>", eos_token: "<|endoftext|>", pad_token: "<|pad|>" },
    },
  ],
  // GLM 4. The file name is SentencePiece's, the content is tiktoken's. The configuration has the control tokens.
  ["tokenizer.model", { pattern: words("\\p{N}{1,3}"), before: ["[gMASK]", "<sop>"] }],
]);

export const tiktokenFiles: readonly string[] = [...families.keys()];

/** Whether a file is a tiktoken vocabulary: lines of base64 and a number. */
export function isTiktoken(bytes: Uint8Array): boolean {
  const line = Buffer.from(bytes.subarray(0, 4096)).toString("latin1").split("\n", 1)[0]!;
  return /^[A-Za-z0-9+/]+=* \d+\r?$/.test(line);
}

export function tokenizerFromTiktoken(
  file: string,
  bytes: Uint8Array,
  config: TokenizerConfigJson,
): Tokenizer {
  const family = families.get(file);
  if (!family) throw new LoadError(`the vocabulary file ${quoted(file)} is unknown`);
  const ranks = readRanks(bytes);
  const named = addedTokensOf(config);
  const names = new Map(named.map(({ id, content }) => [id, content]));
  const first = Math.max(...ranks.values()) + 1;
  const control = (family.control?.(first) ?? []).map(
    (content, i): AddedTokenJson => ({ id: first + i, content, special: true }),
  );
  return rankedTokenizer({
    ranks,
    pattern: family.pattern,
    added: [...control.filter(({ id }) => !names.has(id)), ...named],
    isComposed: family.isComposed ?? false,
    before: family.before ?? [],
    config: { ...family.named, ...config },
  });
}

type RankedParts = {
  /** Token ids by the token's bytes, which are spelled in GPT-2's byte alphabet. */
  ranks: ReadonlyMap<string, number>;
  pattern: string;
  added: readonly AddedTokenJson[];
  isComposed: boolean;
  before: readonly string[];
  config: TokenizerConfigJson;
};

export function rankedTokenizer(parts: RankedParts): Tokenizer {
  const { ranks, pattern, added, isComposed, config } = parts;
  const scores: number[] = [];
  for (const id of ranks.values()) scores[id] = -id;
  const addedIds = new Map(added.map(({ content, id }) => [content, id]));
  const before = parts.before.flatMap((content) => addedIds.get(content) ?? []);
  return buildTokenizer(
    {
      vocab: ranks,
      model: bpeModel({
        vocab: ranks,
        merges: scoredMerges(ranks, scores),
        unk: undefined,
        fuseUnk: false,
        bytes: undefined,
        ignoreMerges: true,
      }),
      added_tokens: added,
      normalizer: isComposed ? { type: "NFC" } : null,
      pre_tokenizer: byteLevelSplits([pattern]),
      decoder: { type: "ByteLevel" },
      post_processor: {
        type: "TemplateProcessing",
        single: [
          ...before.map((id) => ({ SpecialToken: { id: String(id) } })),
          { Sequence: { id: "A" } },
        ],
        special_tokens: Object.fromEntries(before.map((id) => [id, { ids: [id] }])),
      },
    },
    config,
  );
}

function readRanks(bytes: Uint8Array): Map<string, number> {
  const ranks = new Map<string, number>();
  const lines = Buffer.from(bytes).toString("latin1").split(/\r?\n/);
  lines.forEach((line, i) => {
    if (line === "") return;
    const [, token, rank] = /^([A-Za-z0-9+/]+=*) (\d{1,8})$/.exec(line) ?? [];
    if (token === undefined) throw new LoadError(`line ${i + 1}: expected base64 and a rank`);
    ranks.set(spelled(Buffer.from(token, "base64")), Number(rank));
  });
  if (ranks.size === 0) throw new LoadError("the file contains no tokens");
  return ranks;
}

/** Spells bytes in GPT-2's byte alphabet. */
export function spelled(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += BYTE_CHARS[byte];
  return text;
}
