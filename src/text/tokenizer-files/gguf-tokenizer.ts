// Builds a tokenizer from GGUF metadata: byte-level BPE ("gpt2"), SentencePiece BPE with scores ("llama") or merges
// ("gemma4"), unigram ("t5") or greedy longest match ("rwkv").
import { bpeModel, byteTokens } from "../tokenizer/bpe.ts";
import { byteLevelSplits } from "../tokenizer/pre-tokenizer.ts";
import type { TokenModel } from "../tokenizer/token-model.ts";
import {
  buildTokenizer,
  rankedMerges,
  type Tokenizer,
  type TokenizerParts,
} from "../tokenizer/tokenizer.ts";
import type { AddedTokenJson, TokenizerConfigJson } from "../tokenizer/tokenizer-json.ts";
import { unigramModel } from "../tokenizer/unigram.ts";
import { ggufPreTokenizer } from "./gguf-pre-tokenizers.ts";
import { longestMatchModel, unescapedBytes } from "./rwkv-tokenizer.ts";
import { marksAsSpaces, scoredMerges } from "./sentence-piece.ts";
import { sentencePieceNormalizer } from "./sentence-piece-normalizer.ts";
import { spelled } from "./tiktoken.ts";

type GgufField = number | bigint | boolean | string | ArrayLike<unknown>;
export type GgufMetadata = ReadonlyMap<string, GgufField>;

const CONTROL = 3;
const UNKNOWN = 2;
const USER_DEFINED = 4;
const UNUSED = 5;
const BYTE = 6;

export function tokenizerFromGguf(metadata: GgufMetadata): Tokenizer {
  const fields = fieldsOf(metadata);
  const kind = fields.string("model");
  const types = fields.numbers("token_type");
  const stored = fields.strings("tokens");
  const isPlain = (id: number) => types?.[id] !== CONTROL && types?.[id] !== UNKNOWN;
  // RWKV tokens are Python bytes literals.
  const tokens =
    kind === "rwkv"
      ? stored.map((text, id) => (isPlain(id) ? spelled(unescapedBytes(text)) : text))
      : stored;
  const vocabulary = readVocabulary(tokens, types);
  switch (kind) {
    case "gpt2":
      return build(fields, vocabulary, byteLevel(fields, vocabulary));
    case "llama":
      return build(fields, vocabulary, sentencePiece(fields, vocabulary, scored));
    case "gemma4":
      return build(fields, vocabulary, sentencePiece(fields, vocabulary, ranked));
    case "rwkv":
      return build(fields, vocabulary, longestMatch(vocabulary));
    case "t5":
      return build(fields, vocabulary, unigram(fields, vocabulary));
    default:
      throw new Error(`GGUF: the tokenizer model "${kind}" is not supported`);
  }
}

export function ggufChatTemplate(metadata: GgufMetadata): string | undefined {
  const template = metadata.get("tokenizer.chat_template");
  return typeof template === "string" ? template : undefined;
}

type Fields = ReturnType<typeof fieldsOf>;

/** Reads `tokenizer.ggml.*`; errors name the missing or mistyped field. */
function fieldsOf(metadata: GgufMetadata) {
  const get = (name: string) => metadata.get(`tokenizer.ggml.${name}`);
  const missing = (name: string) => new Error(`GGUF: tokenizer.ggml.${name} is missing`);
  return {
    string(name: string, otherwise?: string): string {
      const value = get(name) ?? otherwise;
      if (typeof value !== "string") throw missing(name);
      return value;
    },
    strings(name: string): string[] {
      const value = get(name);
      if (typeof value !== "object") throw missing(name);
      return Array.from(value, String);
    },
    numbers(name: string): number[] | undefined {
      const value = get(name);
      return typeof value === "object" ? Array.from(value, Number) : undefined;
    },
    number(name: string): number | undefined {
      const value = get(name);
      return typeof value === "number" || typeof value === "bigint" ? Number(value) : undefined;
    },
    flag(name: string, otherwise: boolean): boolean {
      const value = get(name);
      return typeof value === "boolean" ? value : otherwise;
    },
  };
}

interface GgufVocabulary {
  tokens: readonly string[];
  /** Ids of all tokens. */
  ids: ReadonlyMap<string, number>;
  /** Ids of the tokens that text may be encoded to. */
  plain: ReadonlyMap<string, number>;
  added: readonly AddedTokenJson[];
}

function readVocabulary(
  tokens: readonly string[],
  types: readonly number[] | undefined,
): GgufVocabulary {
  const ids = new Map<string, number>();
  const plain = new Map<string, number>();
  const added: AddedTokenJson[] = [];
  tokens.forEach((content, id) => {
    const type = types?.[id];
    // Converters fill gaps in the ids with duplicate texts; the first id of a text is the real token.
    if (!ids.has(content)) ids.set(content, id);
    if (type === CONTROL || type === UNKNOWN) added.push({ id, content, special: true });
    else if (type === USER_DEFINED) added.push({ id, content, special: false });
    else if (type !== UNUSED && type !== BYTE && !plain.has(content)) plain.set(content, id);
  });
  return { tokens, ids, plain, added };
}

interface Kind {
  model: TokenModel;
  parts: Pick<TokenizerParts, "normalize" | "pre_tokenizer" | "decoder">;
  addsBos: boolean;
}

function build(fields: Fields, vocabulary: GgufVocabulary, kind: Kind): Tokenizer {
  const { tokens, ids, added } = vocabulary;
  const idOf = (name: string) => fields.number(`${name}_token_id`);
  const around = (name: "bos" | "eos", otherwise: boolean) => {
    const id = idOf(name);
    return id !== undefined && fields.flag(`add_${name}_token`, otherwise) ? [id] : [];
  };
  const config: TokenizerConfigJson = {
    bos_token: tokens[idOf("bos") ?? -1] ?? null,
    eos_token: tokens[idOf("eos") ?? -1] ?? null,
    unk_token: tokens[idOf("unknown") ?? -1] ?? null,
    pad_token: tokens[idOf("padding") ?? -1] ?? null,
  };
  const special = (id: number) => ({ SpecialToken: { id: String(id) } });
  const before = around("bos", kind.addsBos);
  const after = around("eos", false);
  const parts: TokenizerParts = {
    ...kind.parts,
    added_tokens: added,
    post_processor: {
      type: "TemplateProcessing",
      single: [...before.map(special), { Sequence: { id: "A" } }, ...after.map(special)],
      special_tokens: Object.fromEntries([...before, ...after].map((id) => [id, { ids: [id] }])),
    },
    vocab: ids,
    model: kind.model,
  };
  return buildTokenizer(parts, config);
}

function byteLevel(fields: Fields, { plain }: GgufVocabulary): Kind {
  const family = ggufPreTokenizer(fields.string("pre", "default"));
  return {
    addsBos: family.addsBos ?? false,
    model: bpeModel({
      vocab: plain,
      merges: rankedMerges(fields.strings("merges"), plain),
      unk: undefined,
      fuseUnk: false,
      bytes: undefined,
      ignoreMerges: family.ignoreMerges ?? false,
    }),
    parts: { pre_tokenizer: byteLevelSplits(family.patterns), decoder: { type: "ByteLevel" } },
  };
}

const scored = (fields: Fields, { tokens, plain }: GgufVocabulary) =>
  scoredMerges(plain, fields.numbers("scores") ?? tokens.map(() => 0));

const ranked = (fields: Fields, { plain }: GgufVocabulary) =>
  rankedMerges(fields.strings("merges"), plain);

function sentencePiece(
  fields: Fields,
  vocabulary: GgufVocabulary,
  mergesOf: typeof scored | typeof ranked,
): Kind {
  const { ids, plain } = vocabulary;
  const prefix = fields.flag("add_space_prefix", true);
  const unk = fields.number("unknown_token_id") ?? ids.get("<unk>");
  return {
    addsBos: true,
    model: bpeModel({
      vocab: plain,
      merges: mergesOf(fields, vocabulary),
      unk,
      fuseUnk: true,
      bytes: byteTokens(ids),
      ignoreMerges: false,
    }),
    parts: {
      normalize: sentencePieceNormalizer({
        prefix: prefix ? "each" : "none",
        removeExtraSpaces: false,
      }),
      decoder: marksAsSpaces(prefix),
    },
  };
}

function longestMatch({ plain }: GgufVocabulary): Kind {
  return {
    addsBos: false,
    model: longestMatchModel(plain),
    parts: { pre_tokenizer: byteLevelSplits([]), decoder: { type: "ByteLevel" } },
  };
}

function unigram(fields: Fields, { tokens, ids, plain }: GgufVocabulary): Kind {
  const scores = fields.numbers("scores");
  if (!scores) throw new Error("GGUF: tokenizer.ggml.scores is missing");
  const prefix = fields.flag("add_space_prefix", true);
  const charsMap = fields.numbers("precompiled_charsmap");
  return {
    addsBos: false,
    model: unigramModel({
      entries: Array.from(plain, ([text, id]) => [text, scores[id] ?? 0, id] as const),
      lowestScore: tokens.reduce((low, _, id) => Math.min(low, scores[id] ?? 0), Infinity),
      unk: fields.number("unknown_token_id") ?? ids.get("<unk>"),
      bytes: byteTokens(ids),
    }),
    parts: {
      normalize: sentencePieceNormalizer({
        charsMap: charsMap && Uint8Array.from(charsMap),
        prefix: prefix ? "each" : "none",
        removeExtraSpaces: fields.flag("remove_extra_whitespaces", false),
      }),
      decoder: marksAsSpaces(prefix),
    },
  };
}
