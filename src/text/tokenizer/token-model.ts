// The interface of a tokenizer's model (BPE, unigram, ...), which encodes one piece of text.
import type { TokenIds } from "./token-ids.ts";

export interface TokenModel {
  /** Returns the ids of a short piece: memory and time grow with its length. */
  encode(piece: string): readonly number[];
  /** Appends the ids of a piece of any length, yielding every few milliseconds. */
  encodeLong(piece: string, spell: Spelling, ids: TokenIds): Generator<void>;
}

/** Spells a text as the vocabulary does: unchanged or in GPT-2's byte alphabet, character by character. */
export type Spelling = (text: string) => string;
