// WordPiece: greedy longest match, first of a token that starts the word, then of tokens that continue it.
import type { TokenModel } from "./token-model.ts";

export interface WordPieceOptions {
  vocab: ReadonlyMap<string, number>;
  unk: number | undefined;
  prefix: string;
  maxChars: number;
}

export function wordPieceModel({ vocab, unk, prefix, maxChars }: WordPieceOptions): TokenModel {
  const longest = vocab.keys().reduce((most, text) => Math.max(most, text.length), 0);
  const unknown = unk === undefined ? [] : [unk];

  function encode(word: string): readonly number[] {
    // A character has at most two UTF-16 units.
    if (word.length > 2 * maxChars) return unknown;
    const chars = Array.from(word);
    if (chars.length > maxChars) return unknown;
    const found: number[] = [];
    for (let start = 0; start < chars.length; ) {
      let end = Math.min(chars.length, start + longest);
      let id: number | undefined;
      for (; end > start; end--) {
        id = vocab.get((start > 0 ? prefix : "") + chars.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      // A word that cannot be encoded completely becomes one unknown token.
      if (id === undefined) return unknown;
      found.push(id);
      start = end;
    }
    return found;
  }

  return {
    encode,
    *encodeLong(word, spell, ids) {
      yield;
      for (const id of encode(spell(word))) ids.push(id);
    },
  };
}
