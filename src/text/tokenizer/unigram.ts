// The unigram model: finds the segmentation of a piece into tokens with the highest total score (Viterbi).
import type { TokenIds } from "./token-ids.ts";
import type { TokenModel } from "./token-model.ts";
import { Trie } from "./trie.ts";

export interface UnigramOptions {
  /** Token text, score and id, without control tokens, which text must never become. */
  entries: Iterable<readonly [text: string, score: number, id: number]>;
  lowestScore: number;
  unk: number | undefined;
  /** Byte-fallback tokens, for characters that the vocabulary lacks. */
  bytes: readonly number[] | undefined;
  /** Whether scores are summed in float32, as SentencePiece does: this decides ties between segmentations. */
  isSinglePrecision?: boolean;
}

const UNK_PENALTY = 10;
/** Characters between yields: a few milliseconds of work. */
const YIELD_CHARS = 4096;

export function unigramModel(options: UnigramOptions): TokenModel {
  const trie = new Trie();
  /** Token id of each trie node. */
  const idAt: (number | undefined)[] = [];
  const scoreAt: number[] = [];
  let longest = 2;
  for (const [text, score, id] of options.entries) {
    const node = trie.add(text);
    if (idAt[node] !== undefined || node === 0) continue;
    idAt[node] = id;
    scoreAt[node] = score;
    longest = Math.max(longest, text.length);
  }
  const { bytes } = options;
  const utf8 = new TextEncoder();
  const unkScore = options.lowestScore - UNK_PENALTY;
  const round = options.isSinglePrecision ? Math.fround : (sum: number) => sum;
  const Lengths = longest > 0xffff ? Uint32Array : Uint16Array;

  /** Finds for each end offset the length of the last token of the best segmentation up to it. */
  function* bestLengths(piece: string): Generator<void, Uint16Array | Uint32Array> {
    const { length } = piece;
    const lengths = new Lengths(length + 1);
    // Ring buffer of the best score at each end offset that a token starting here can reach.
    const reach = longest + 1;
    const best = new Float64Array(reach).fill(Number.NEGATIVE_INFINITY);
    best[0] = 0;
    let yieldAt = YIELD_CHARS;
    for (let start = 0; start < length; ) {
      const charEnd = start + (piece.codePointAt(start)! > 0xffff ? 2 : 1);
      const reached = best[start % reach]!;
      let hasChar = false;
      const offer = (end: number, score: number) => {
        const sum = round(reached + score);
        if (sum <= best[end % reach]!) return;
        best[end % reach] = sum;
        lengths[end] = end - start;
      };
      let node: number | undefined = 0;
      for (let end = start; end < length; ) {
        node = trie.next(node, piece.charCodeAt(end++));
        if (node === undefined) break;
        if (idAt[node] === undefined) continue;
        offer(end, scoreAt[node]!);
        hasChar ||= end === charEnd;
      }
      if (!hasChar) offer(charEnd, unkScore);
      for (; start < charEnd; start++) best[start % reach] = Number.NEGATIVE_INFINITY;
      if (start < yieldAt) continue;
      yieldAt = start + YIELD_CHARS;
      yield;
    }
    return lengths;
  }

  function idOf(piece: string, start: number, end: number): number | undefined {
    let node = 0;
    for (let i = start; i < end; i++) {
      const child = trie.next(node, piece.charCodeAt(i));
      if (child === undefined) return undefined;
      node = child;
    }
    return idAt[node];
  }

  function* encode(piece: string, ids: TokenIds): Generator<void> {
    const lengths = yield* bestLengths(piece);
    // Backtracks from the end: moves each token's length from the index of its end to the index of its start.
    let moved = 0;
    for (let end = piece.length; end > 0; ) {
      const length = lengths[end]!;
      lengths[end] = moved;
      moved = length;
      end -= length;
    }
    lengths[0] = moved;
    let afterUnk = false;
    let yieldAt = YIELD_CHARS;
    for (let start = 0; start < piece.length; ) {
      const end = start + lengths[start]!;
      const id = idOf(piece, start, end);
      if (id !== undefined) ids.push(id);
      else if (bytes)
        for (const byte of utf8.encode(piece.slice(start, end))) ids.push(bytes[byte]!);
      else if (!afterUnk && options.unk !== undefined) ids.push(options.unk);
      afterUnk = id === undefined;
      start = end;
      if (start < yieldAt) continue;
      yieldAt = start + YIELD_CHARS;
      yield;
    }
  }

  return {
    encode(piece) {
      const ids: number[] = [];
      for (const _ of encode(piece, ids));
      return ids;
    },
    encodeLong: (piece, spell, ids) => encode(spell(piece), ids),
  };
}
