// The fields used of Hugging Face's tokenizer.json and tokenizer_config.json.

export type PatternJson = { String: string } | { Regex: string };

export type SplitBehavior =
  | "Removed"
  | "Isolated"
  | "MergedWithPrevious"
  | "MergedWithNext"
  | "Contiguous";

export interface AddedTokenJson {
  id: number;
  content: string;
  special?: boolean;
  normalized?: boolean;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
}

/** The options have no types here: @huggingface/tokenizers validates them for each type of normalizer. */
export type NormalizerJson = { type: string; [option: string]: unknown };

export type PreTokenizerJson =
  | { type: "Sequence"; pretokenizers: readonly PreTokenizerJson[] }
  | { type: "Split"; pattern: PatternJson; behavior: SplitBehavior; invert?: boolean }
  | { type: "ByteLevel"; add_prefix_space?: boolean; use_regex?: boolean }
  | {
      type: "Metaspace";
      replacement?: string;
      prepend_scheme?: "always" | "first" | "never";
      add_prefix_space?: boolean;
      split?: boolean;
    }
  | { type: "Digits"; individual_digits?: boolean }
  | { type: "Punctuation"; behavior?: SplitBehavior }
  | { type: "CharDelimiterSplit"; delimiter: string }
  | { type: "BertPreTokenizer" }
  | { type: "Whitespace" }
  | { type: "WhitespaceSplit" };

export interface BpeJson {
  type: "BPE";
  vocab: Readonly<Record<string, number>>;
  merges: readonly (string | readonly [string, string])[];
  unk_token?: string | null;
  fuse_unk?: boolean | null;
  byte_fallback?: boolean | null;
  ignore_merges?: boolean | null;
  continuing_subword_prefix?: string | null;
  end_of_word_suffix?: string | null;
}

export interface UnigramJson {
  type: "Unigram";
  vocab: readonly (readonly [string, number])[];
  unk_id?: number | null;
  byte_fallback?: boolean | null;
}

export interface WordPieceJson {
  type: "WordPiece";
  vocab: Readonly<Record<string, number>>;
  unk_token?: string;
  continuing_subword_prefix?: string;
  max_input_chars_per_word?: number;
}

export type ModelJson = BpeJson | UnigramJson | WordPieceJson;

type TemplatePartJson = { SpecialToken: { id: string } } | { Sequence: { id: string } };

export type PostProcessorJson =
  | { type: "Sequence"; processors: readonly PostProcessorJson[] }
  | { type: "ByteLevel" }
  | {
      type: "TemplateProcessing";
      single: readonly TemplatePartJson[];
      special_tokens: Readonly<Record<string, { ids: readonly number[] }>>;
    }
  | {
      type: "BertProcessing" | "RobertaProcessing";
      cls: readonly [string, number];
      sep: readonly [string, number];
    };

export type DecoderJson =
  | { type: "Sequence"; decoders: readonly DecoderJson[] }
  | { type: "ByteLevel" }
  | { type: "ByteFallback" }
  | { type: "Fuse" }
  | { type: "Replace"; pattern: PatternJson; content: string }
  | { type: "Strip"; content: string; start: number; stop: number }
  | {
      type: "Metaspace";
      replacement?: string;
      prepend_scheme?: "always" | "first" | "never";
      add_prefix_space?: boolean;
    }
  | { type: "WordPiece"; prefix?: string; cleanup?: boolean };

export interface TokenizerJson {
  added_tokens?: readonly AddedTokenJson[];
  normalizer?: NormalizerJson | null;
  pre_tokenizer?: PreTokenizerJson | null;
  post_processor?: PostProcessorJson | null;
  decoder?: DecoderJson | null;
  model: ModelJson;
}

/** A token's text, or an object that contains it. */
export type NamedToken = string | { content: string } | null;

export interface TokenizerConfigJson {
  bos_token?: NamedToken;
  eos_token?: NamedToken;
  unk_token?: NamedToken;
  pad_token?: NamedToken;
  /** Tokens outside the vocabulary, by id. */
  added_tokens_decoder?: Readonly<Record<string, Omit<AddedTokenJson, "id">>>;
  add_bos_token?: boolean;
  add_eos_token?: boolean;
  /** If false, SentencePiece prepends ▁ only at the start of the input, not after each control token. */
  legacy?: boolean | null;
  chat_template?: string | readonly { name: string; template: string }[] | null;
}

export function tokenText(token: NamedToken | undefined): string | undefined {
  return typeof token === "object" ? token?.content : token;
}

/** Returns the tokens that tokenizer_config.json adds to the vocabulary. */
export function addedTokensOf(config: TokenizerConfigJson): AddedTokenJson[] {
  return Object.entries(config.added_tokens_decoder ?? {}).map(([id, token]) => ({
    ...token,
    id: Number(id),
  }));
}

/** Returns an error that names the unsupported step; guessing would silently give wrong ids. */
export function unsupported(part: string, step: unknown): Error {
  const name = (step as { type?: unknown } | null)?.type;
  return new Error(`tokenizer.json: the ${part} ${String(name)} is not supported`);
}
