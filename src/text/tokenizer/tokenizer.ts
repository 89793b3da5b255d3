// Encodes text to token ids and back, as tokenizer.json describes: finds added tokens, normalizes the text between
// them, splits it into pieces, and encodes the pieces with the model.
import type { ErrorAnswer } from "../../error-answer.ts";
import { addedTokens, type ControlTokens, isControlToken, type Segment } from "./added-tokens.ts";
import { bpeModel, byteTokens, type Merge } from "./bpe.ts";
import { type TokenDecoder, tokenDecoder } from "./decoder.ts";
import { Detokenizer, type DetokenizerOptions } from "./detokenizer.ts";
import { type Normalizer, normalizer } from "./normalizer.ts";
import { preTokenizer } from "./pre-tokenizer.ts";
import { finish, type TokenIds } from "./token-ids.ts";
import type { TokenModel } from "./token-model.ts";
import {
  type AddedTokenJson,
  type BpeJson,
  type ModelJson,
  type NamedToken,
  type PostProcessorJson,
  type TokenizerConfigJson,
  type TokenizerJson,
  tokenText,
  unsupported,
} from "./tokenizer-json.ts";
import { unigramModel } from "./unigram.ts";
import { wordPieceModel } from "./word-piece.ts";

export interface EncodeOptions {
  /** Whether to add special tokens around the text, such as BOS. Default: false. */
  addSpecialTokens?: boolean;
  /** Whether control tokens spelled out in the text are parsed. */
  controlTokens: ControlTokens;
  /** Maximum tokens; TooLongError is thrown as soon as the text is known to exceed it. */
  maxTokens?: number | undefined;
  /** Ascending character offsets; `encodeSteps` counts the tokens before each. */
  offsets?: readonly number[] | undefined;
}

export class TooLongError extends Error {
  override name = "TooLongError";
  readonly answer: ErrorAnswer = {
    status: 400,
    message: "The prompt is longer than the model's maximum context length.",
    code: "context_length_exceeded",
    param: "prompt",
  };
  readonly maxTokens: number;

  constructor(maxTokens: number) {
    super(`the text has more than ${maxTokens} tokens`);
    this.maxTokens = maxTokens;
  }
}

/** Sizes of units of work, which do not affect the result; only tests change them. */
export interface WorkSizes {
  /** Characters normalized at a time. */
  part?: number;
  /** Maximum characters of a piece that is encoded as a whole. */
  piece?: number;
  /** Symbols merged at a time in a longer piece. */
  window?: number;
}

const WHOLE_PIECE = 4096;
/** Pieces between yields: a few milliseconds of work. */
const YIELD_PIECES = 256;
const CACHED_PIECES = 32_768;
const CACHED_LENGTH = 64;

export interface Tokenizer {
  /** Highest id + 1. */
  readonly vocabSize: number;
  /** Control tokens to their ids. */
  readonly controlTokens: ReadonlyMap<string, number>;
  /** The tokens a chat template may name: bos_token, eos_token, unk_token, pad_token. */
  readonly namedTokens: Readonly<Record<string, string>>;
  readonly bosId: number | undefined;
  readonly eosId: number | undefined;
  readonly decoder: TokenDecoder;
  /** Length of the longest token in characters. */
  readonly longestToken: number;
  idOf(token: string): number | undefined;
  tokenOf(id: number): string | undefined;
  encode(text: string, options: EncodeOptions): number[];
  /**
   * Encodes in steps: appends the ids and yields every few milliseconds. Returns for each of the `offsets` the number
   * of tokens that end at or before it, an estimate inside a text that the normalizer changes.
   */
  encodeSteps(text: string, options: EncodeOptions, ids: TokenIds): Generator<void, number[]>;
  decode(ids: Iterable<number>, options?: DetokenizerOptions): string;
}

/** The fields of tokenizer.json, with a prebuilt model in place of the file's (for GGUF's scored merges). */
export type TokenizerParts = Omit<TokenizerJson, "model"> & {
  vocab: ReadonlyMap<string, number>;
  model: TokenModel;
  /** Replaces `normalizer`. The contents of added tokens must already be normalized. */
  normalize?: Normalizer;
};

/** Builds a tokenizer from the parsed contents of tokenizer.json and tokenizer_config.json. */
export function tokenizerFromJson(
  json: TokenizerJson,
  config: TokenizerConfigJson,
  sizes: WorkSizes = {},
): Tokenizer {
  const vocab = vocabOf(json.model);
  const control = new Set((json.added_tokens ?? []).filter(isControlToken).map((t) => t.content));
  const model = modelOf(json.model, vocab, control, sizes.window);
  return buildTokenizer({ ...json, vocab, model }, config, sizes);
}

export function buildTokenizer(
  parts: TokenizerParts,
  config: TokenizerConfigJson,
  sizes: WorkSizes = {},
): Tokenizer {
  const added = parts.added_tokens ?? [];
  const ids = new Map(parts.vocab);
  for (const token of added) ids.set(token.content, token.id);
  const texts: string[] = [];
  for (const [text, id] of ids) texts[id] = text;
  const controlTokens = new Map(added.filter(isControlToken).map((t) => [t.content, t.id]));
  const controlIds = new Set(controlTokens.values());
  const addedIds = new Set(added.map((token) => token.id));

  const decoder = tokenDecoder(parts.decoder, {
    textOf: (id) => texts[id],
    isControl: (id) => controlIds.has(id),
    isAdded: (id) => addedIds.has(id),
  });
  const normalize = parts.normalize ?? normalizer(parts.normalizer, sizes.part);
  const asNormalized = ({ content }: AddedTokenJson) =>
    parts.normalize ? content : finish(normalize(content, true));
  // Control tokens are matched in the raw text; other added tokens may be matched in the normalized text.
  const { true: late = [], false: early = [] } = Object.groupBy(added, (token) =>
    String(token.normalized === true && !isControlToken(token)),
  );
  const written = addedTokens(new Map(early.map((token) => [token.content, token])));
  const normalized = addedTokens(new Map(late.map((token) => [asNormalized(token), token])));
  const { cut, spell } = preTokenizer(parts.pre_tokenizer);
  const { prefix, suffix } = surroundings(parts.post_processor);

  const longest = texts.reduce((most, text) => Math.max(most, text?.length ?? 0), 1);

  // Maximum length of a piece encoded as a whole: at least the longest token's, because a piece may be a token.
  const wholePiece = Math.max(sizes.piece ?? WHOLE_PIECE, longest);
  const cache = new Map<string, readonly number[]>();

  function idsOf(piece: string): readonly number[] {
    const cached = cache.get(piece);
    if (cached) return cached;
    const found = parts.model.encode(spell(piece));
    if (piece.length <= CACHED_LENGTH) {
      if (cache.size >= CACHED_PIECES) cache.clear();
      // Copies the key: a slice would keep the whole text in memory.
      cache.set(` ${piece}`.slice(1), found);
    }
    return found;
  }

  function* encodeText(text: string, first: boolean, out: TokenIds): Generator<void> {
    let pieces = 0;
    for (const segment of normalized.split(yield* normalize(text, first), "text")) {
      if (segment.kind === "token") out.push(segment.id);
      else {
        for (const piece of cut(segment.text, first && segment.start === 0)) {
          if (piece.length > wholePiece) yield* parts.model.encodeLong(piece, spell, out);
          else for (const id of idsOf(piece)) out.push(id);
          if (++pieces % YIELD_PIECES === 0) yield;
        }
      }
    }
  }

  /** Counts the tokens of the last segment (ids from index `first` on) that end at or before an offset in it. */
  function countBefore(offset: number, segment: Segment, first: number, ids: TokenIds): number {
    if (segment.kind === "token") return 0;
    let bytes = Buffer.byteLength(segment.text.slice(0, offset - segment.start));
    for (let i = first; i < ids.length; i++) {
      bytes -= decoder.bytes(ids.at(i)!, false)?.length ?? 0;
      if (bytes < 0) return i - first;
    }
    return ids.length - first;
  }

  function* encodeSteps(
    text: string,
    options: EncodeOptions,
    out: TokenIds,
  ): Generator<void, number[]> {
    const { addSpecialTokens = false, controlTokens: control, maxTokens = Infinity } = options;
    const { offsets = [] } = options;
    const counts: number[] = [];
    if (text.length > maxTokens * longest) throw new TooLongError(maxTokens);
    const before = out.length;
    const check = () => {
      if (out.length - before > maxTokens) throw new TooLongError(maxTokens);
    };
    if (addSpecialTokens) for (const id of prefix) out.push(id);
    for (const segment of written.split(text.toWellFormed(), control)) {
      const first = out.length;
      if (segment.kind === "token") out.push(segment.id);
      else {
        for (const _ of encodeText(segment.text, segment.start === 0, out)) {
          check();
          yield;
        }
      }
      for (const offset of offsets.slice(counts.length)) {
        if (offset >= segment.end) break;
        counts.push(first - before + countBefore(offset, segment, first, out));
      }
      check();
    }
    while (counts.length < offsets.length) counts.push(out.length - before);
    if (addSpecialTokens) for (const id of suffix) out.push(id);
    return counts;
  }

  const named = (token: NamedToken | undefined) => {
    const text = tokenText(token);
    return text === undefined ? undefined : ids.get(text);
  };

  return {
    vocabSize: texts.length,
    controlTokens,
    namedTokens: namedTokens(config),
    bosId: named(config.bos_token),
    eosId: named(config.eos_token),
    decoder,
    longestToken: longest,
    idOf: (token) => ids.get(token),
    tokenOf: (id) => texts[id],
    encode(text, options) {
      const ids: number[] = [];
      finish(encodeSteps(text, options, ids));
      return ids;
    },
    encodeSteps,
    decode(tokenIds, options) {
      const detokenizer = new Detokenizer(decoder, options);
      return detokenizer.push(tokenIds) + detokenizer.flush();
    },
  };
}

function namedTokens(config: TokenizerConfigJson): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of ["bos_token", "eos_token", "unk_token", "pad_token"] as const) {
    const text = tokenText(config[name]);
    if (text !== undefined) tokens[name] = text;
  }
  return tokens;
}

function vocabOf(model: ModelJson): Map<string, number> {
  if (model.type === "Unigram") return new Map(model.vocab.map(([text], id) => [text, id]));
  return new Map(Object.entries(model.vocab));
}

/** Removes control tokens from the model, so that no merge or score produces one. */
function modelOf(
  json: ModelJson,
  vocab: ReadonlyMap<string, number>,
  control: ReadonlySet<string>,
  window: number | undefined,
): TokenModel {
  const plain = new Map([...vocab].filter(([text]) => !control.has(text)));
  switch (json.type) {
    case "BPE":
      if (json.continuing_subword_prefix || json.end_of_word_suffix) {
        throw new Error("tokenizer.json: BPE with a word prefix or suffix is not supported");
      }
      return bpeModel(
        {
          vocab: plain,
          merges: rankedMerges(json.merges, plain),
          unk: json.unk_token ? vocab.get(json.unk_token) : undefined,
          fuseUnk: json.fuse_unk ?? false,
          bytes: json.byte_fallback ? byteTokens(vocab) : undefined,
          ignoreMerges: json.ignore_merges ?? false,
        },
        window,
      );
    case "Unigram":
      return unigramModel({
        entries: json.vocab.flatMap(([text, score], id) =>
          control.has(text) ? [] : [[text, score, id] as const],
        ),
        lowestScore: json.vocab.reduce((low, [, score]) => Math.min(low, score), Infinity),
        unk: json.unk_id ?? undefined,
        bytes: json.byte_fallback ? byteTokens(vocab) : undefined,
      });
    case "WordPiece":
      return wordPieceModel({
        vocab: plain,
        unk: vocab.get(json.unk_token ?? "[UNK]"),
        prefix: json.continuing_subword_prefix ?? "##",
        maxChars: json.max_input_chars_per_word ?? 100,
      });
    default:
      throw unsupported("model", json);
  }
}

/** Yields merges in file order, best first. An entry is "left right" or a pair. */
export function* rankedMerges(
  merges: BpeJson["merges"],
  vocab: ReadonlyMap<string, number>,
): Iterable<Merge> {
  for (let rank = 0; rank < merges.length; rank++) {
    const entry = merges[rank]!;
    // The left token may itself be a space: the separator comes after the first character.
    const divide = typeof entry === "string" ? entry.indexOf(" ", 1) : 0;
    const [a, b] =
      typeof entry === "string" ? [entry.slice(0, divide), entry.slice(divide + 1)] : entry;
    const left = vocab.get(a);
    const right = vocab.get(b);
    const merged = vocab.get(a + b);
    if (left === undefined || right === undefined || merged === undefined) continue;
    yield { left, right, merged, rank };
  }
}

/** Returns the ids that the post-processor puts before and after a text. */
function surroundings(config: PostProcessorJson | null | undefined): {
  prefix: readonly number[];
  suffix: readonly number[];
} {
  if (!config) return { prefix: [], suffix: [] };
  switch (config.type) {
    case "ByteLevel":
      return { prefix: [], suffix: [] };
    case "BertProcessing":
    case "RobertaProcessing":
      return { prefix: [config.cls[1]], suffix: [config.sep[1]] };
    case "Sequence": {
      const all = config.processors.map(surroundings);
      return {
        prefix: all.toReversed().flatMap((each) => each.prefix), // the last one is outermost
        suffix: all.flatMap((each) => each.suffix),
      };
    }
    case "TemplateProcessing": {
      const at = config.single.findIndex((part) => "Sequence" in part);
      const idsOf = (parts: typeof config.single) =>
        parts.flatMap((part) =>
          "SpecialToken" in part ? [...config.special_tokens[part.SpecialToken.id]!.ids] : [],
        );
      return {
        prefix: idsOf(config.single.slice(0, at)),
        suffix: idsOf(config.single.slice(at + 1)),
      };
    }
    default:
      throw unsupported("post-processor", config);
  }
}
