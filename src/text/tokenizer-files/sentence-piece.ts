// Builds a tokenizer from a SentencePiece model file: BPE or unigram, with SentencePiece's normalizer.
import { LoadError } from "../../files/load-error.ts";
import { isControlToken } from "../tokenizer/added-tokens.ts";
import { bpeModel, byteTokens, type Merge } from "../tokenizer/bpe.ts";
import type { TokenModel } from "../tokenizer/token-model.ts";
import { buildTokenizer, type Tokenizer } from "../tokenizer/tokenizer.ts";
import {
  type AddedTokenJson,
  addedTokensOf,
  type DecoderJson,
  type TokenizerConfigJson,
  tokenText,
} from "../tokenizer/tokenizer-json.ts";
import { unigramModel } from "../tokenizer/unigram.ts";
import { type ProtobufValue, protobufFields } from "./protobuf.ts";
import {
  type SentencePieceNormalizerOptions,
  sentencePieceNormalizer,
} from "./sentence-piece-normalizer.ts";

type Piece = { text: string; score: number; type: number; id: number };

type SentencePieceFile = {
  pieces: readonly Piece[];
  kind: "unigram" | "bpe";
  byteFallback: boolean;
  /** Ids of the named pieces; -1 if absent. */
  named: { unk: number; bos: number; eos: number; pad: number };
  normalizer: Pick<SentencePieceNormalizerOptions, "charsMap" | "removeExtraSpaces"> & {
    addsPrefix: boolean;
  };
};

// Piece types.
const NORMAL = 1;
const UNKNOWN = 2;
const CONTROL = 3;
const USER_DEFINED = 4;

/** Score of user-defined symbols, above the log probabilities of the ordinary pieces. */
const SYMBOL_SCORE = Math.fround(-0.1);

const MODEL_KINDS = new Map([
  [1, "unigram"],
  [2, "bpe"],
] as const);

// `ignoreBOM` keeps a byte order mark in the text, because the mark is an ordinary piece.
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

/** Builds the tokenizer of a tokenizer.model, given as `bytes`. `config` adds tokens. */
export function tokenizerFromSentencePiece(
  bytes: Uint8Array,
  config: TokenizerConfigJson,
): Tokenizer {
  const file = readFile(bytes);
  const { pieces } = file;
  const listed = addedTokensOf(config);
  const byId = new Map(listed.map((token) => [token.id, token]));
  const isSymbol = ({ type, text, id }: Piece) =>
    type === USER_DEFINED && !isControlToken({ id, content: text, ...byId.get(id) });
  const isControl = (piece: Piece) =>
    piece.type === CONTROL ||
    piece.type === UNKNOWN ||
    byId.has(piece.id) ||
    (piece.type === USER_DEFINED && !isSymbol(piece));
  const vocab = new Map<string, number>();
  for (const { text, id } of pieces) if (!vocab.has(text)) vocab.set(text, id);
  const symbols = pieces.filter((piece) => isSymbol(piece) && !byId.has(piece.id));
  const plain = pieces.filter((piece) => piece.type === NORMAL && !isControl(piece));
  const control = pieces
    .filter((piece) => isControl(piece) && !byId.has(piece.id))
    .map(({ id, text }): AddedTokenJson => ({ id, content: text, special: true }));
  const named = namedTokens(file, config);
  const bos = vocab.get(tokenText(named.bos_token) ?? "");
  const eos = vocab.get(tokenText(named.eos_token) ?? "");
  const before = config.add_bos_token !== false && bos !== undefined ? [bos] : [];
  const after = config.add_eos_token === true && eos !== undefined ? [eos] : [];
  const { addsPrefix, ...normalizer } = file.normalizer;
  const prefix = !addsPrefix ? "none" : config.legacy === false ? "first" : "each";
  return buildTokenizer(
    {
      vocab,
      model: modelOf(file, plain, symbols, vocab),
      // Adds user-defined symbols for BPE only, which matches them first; the unigram model gives them a high score.
      added_tokens: [
        ...control,
        ...listed,
        ...(file.kind === "bpe" ? symbols : []).map(({ id, text }) => ({
          id,
          content: text,
          normalized: true,
        })),
      ],
      normalize: sentencePieceNormalizer({
        ...normalizer,
        prefix,
        symbols: symbols.map(({ text }) => text),
      }),
      decoder: marksAsSpaces(addsPrefix),
      post_processor: {
        type: "TemplateProcessing",
        single: [...before.map(special), { Sequence: { id: "A" } }, ...after.map(special)],
        special_tokens: Object.fromEntries([...before, ...after].map((id) => [id, { ids: [id] }])),
      },
    },
    named,
  );
}

const special = (id: number) => ({ SpecialToken: { id: String(id) } });

function modelOf(
  file: SentencePieceFile,
  plain: readonly Piece[],
  symbols: readonly Piece[],
  ids: ReadonlyMap<string, number>,
): TokenModel {
  const bytes = file.byteFallback ? byteTokens(ids) : undefined;
  const { unk } = file.named;
  if (file.kind === "bpe") {
    const vocab = new Map(plain.map(({ text, id }) => [text, id]));
    const scores = file.pieces.map(({ score }) => score);
    const merges = scoredMerges(vocab, scores);
    return bpeModel({ vocab, merges, unk, fuseUnk: true, bytes, ignoreMerges: false });
  }
  return unigramModel({
    entries: [
      ...plain.map(({ text, score, id }) => [text, score, id] as const),
      ...symbols.map(({ text, id }) => [text, SYMBOL_SCORE, id] as const),
    ],
    lowestScore: plain.reduce((low, { score }) => Math.min(low, score), Infinity),
    unk,
    bytes,
    isSinglePrecision: true,
  });
}

/** Returns the named tokens (BOS, EOS, ...) of the configuration; those that it lacks come from the model file. */
function namedTokens(
  { pieces, named }: SentencePieceFile,
  config: TokenizerConfigJson,
): TokenizerConfigJson {
  const text = (id: number) => pieces[id]?.text ?? null;
  return {
    bos_token: config.bos_token ?? text(named.bos),
    eos_token: config.eos_token ?? text(named.eos),
    unk_token: config.unk_token ?? text(named.unk),
    pad_token: config.pad_token ?? text(named.pad),
  };
}

function readFile(bytes: Uint8Array): SentencePieceFile {
  const pieces: Piece[] = [];
  let trainer: Fields = new Map();
  let normalizer: Fields = new Map();
  for (const [field, value] of protobufFields(bytes)) {
    if (typeof value === "number") continue;
    if (field === 1) pieces.push(pieceOf(value, pieces.length));
    if (field === 2) trainer = fieldsOf(value);
    if (field === 3) normalizer = fieldsOf(value);
    if (field === 5 && bytesOf(fieldsOf(value), 2)?.length) {
      throw new LoadError("a denormalizer is not supported");
    }
  }
  if (pieces.length === 0) throw new LoadError("the file contains no pieces");
  const kind = MODEL_KINDS.get(numberOf(trainer, 3, 1) as 1 | 2);
  if (!kind) throw new LoadError("SentencePiece word and char models are not supported");
  if (numberOf(trainer, 24, 0)) throw new LoadError("treat_whitespace_as_suffix is not supported");
  if (!numberOf(normalizer, 5, 1)) throw new LoadError("escape_whitespaces must be true");
  return {
    pieces,
    kind,
    byteFallback: numberOf(trainer, 35, 0) === 1,
    named: {
      unk: numberOf(trainer, 40, 0),
      bos: numberOf(trainer, 41, 1),
      eos: numberOf(trainer, 42, 2),
      pad: numberOf(trainer, 43, -1),
    },
    normalizer: {
      charsMap: bytesOf(normalizer, 2),
      addsPrefix: numberOf(normalizer, 3, 1) === 1,
      removeExtraSpaces: numberOf(normalizer, 4, 1) === 1,
    },
  };
}

function pieceOf(bytes: Uint8Array, id: number): Piece {
  const fields = fieldsOf(bytes);
  const text = utf8.decode(bytesOf(fields, 1) ?? new Uint8Array());
  return { text, score: numberOf(fields, 2, 0), type: numberOf(fields, 3, NORMAL), id };
}

type Fields = ReadonlyMap<number, ProtobufValue>;

const fieldsOf = (bytes: Uint8Array): Fields => new Map(protobufFields(bytes));

function numberOf(fields: Fields, field: number, otherwise: number): number {
  const value = fields.get(field);
  return typeof value === "number" ? value : otherwise;
}

function bytesOf(fields: Fields, field: number): Uint8Array | undefined {
  const value = fields.get(field);
  return typeof value === "object" ? value : undefined;
}

export function marksAsSpaces(prefix: boolean): DecoderJson {
  return {
    type: "Sequence",
    decoders: [
      { type: "Replace", pattern: { String: "▁" }, content: " " },
      { type: "ByteFallback" },
      { type: "Fuse" },
      ...(prefix ? [{ type: "Strip", content: " ", start: 1, stop: 0 } as const] : []),
    ],
  };
}

/** Yields a merge for any two tokens whose concatenation is a token, ordered by the score of that token. */
export function* scoredMerges(
  vocab: ReadonlyMap<string, number>,
  scores: readonly number[],
): Iterable<Merge> {
  const distinct = [...new Set(Array.from(vocab.values(), (id) => scores[id] ?? 0))];
  const rankOf = new Map(distinct.sort((a, b) => b - a).map((score, rank) => [score, rank]));
  for (const [text, merged] of vocab) {
    const rank = rankOf.get(scores[merged] ?? 0)!;
    for (let at = 1; at < text.length; at++) {
      const left = vocab.get(text.slice(0, at));
      if (left === undefined) continue;
      const right = vocab.get(text.slice(at));
      if (right !== undefined) yield { left, right, merged, rank };
    }
  }
}
