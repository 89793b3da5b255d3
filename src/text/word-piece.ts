// WordPiece: the longest token that starts the word, then the longest that continues it, and so on.
import type { TokenModel } from "./bpe.ts";

export interface WordPieceOptions {
  vocab: ReadonlyMap<string, number>;
  unk: number | undefined;
  prefix: string;
  maxChars: number;
}

export function wordPieceModel({ vocab, unk, prefix, maxChars }: WordPieceOptions): TokenModel {
  return (word, ids) => {
    const chars = Array.from(word);
    const found: number[] = [];
    let start = 0;
    while (start < chars.length && chars.length <= maxChars) {
      let end = chars.length;
      let id: number | undefined;
      for (; end > start; end--) {
        id = vocab.get((start > 0 ? prefix : "") + chars.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) break;
      found.push(id);
      start = end;
    }
    // A word that cannot be encoded completely is one unknown token.
    if (start === chars.length) for (const id of found) ids.push(id);
    else if (unk !== undefined) ids.push(unk);
  };
}
