// What the models of tokenizers have in common: each encodes one piece of text.
import type { TokenIds } from "./token-ids.ts";

export interface TokenModel {
  /** The ids of a piece. Takes memory and time for each character, so the piece must not be long. */
  encode(piece: string): readonly number[];
  /** Appends the ids of a piece of any length, yielding every few milliseconds. */
  encodeLong(piece: string, spell: Spelling, ids: TokenIds): Generator<void>;
}

/** How the vocabulary writes a text: as it is, or in GPT-2's alphabet. Applies to each character alone. */
export type Spelling = (text: string) => string;
