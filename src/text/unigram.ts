// The unigram model: of all segmentations of a piece into tokens, the one with the highest total score.
import type { TokenModel } from "./bpe.ts";

export interface UnigramOptions {
  /** Token text, score and id, without control tokens, so that no text becomes one. */
  entries: Iterable<readonly [text: string, score: number, id: number]>;
  lowestScore: number;
  unk: number | undefined;
  /** Byte-fallback tokens, for characters that the vocabulary lacks. */
  bytes: readonly number[] | undefined;
}

const UNK_PENALTY = 10;

export function unigramModel(options: UnigramOptions): TokenModel {
  // A trie in one map: (node, code unit) -> node. Node 0 is the root.
  const edges = new Map<number, number>();
  const idAt: (number | undefined)[] = [undefined];
  const scoreAt: number[] = [0];
  for (const [text, score, id] of options.entries) {
    let node = 0;
    for (let i = 0; i < text.length; i++) {
      const key = node * 65_536 + text.charCodeAt(i);
      let child = edges.get(key);
      if (child === undefined) {
        child = idAt.length;
        edges.set(key, child);
        idAt.push(undefined);
        scoreAt.push(0);
      }
      node = child;
    }
    if (idAt[node] !== undefined || node === 0) continue;
    idAt[node] = id;
    scoreAt[node] = score;
  }
  const { bytes } = options;
  const utf8 = new TextEncoder();
  const unkScore = options.lowestScore - UNK_PENALTY;

  return (piece, out) => {
    const length = piece.length;
    const best = new Float64Array(length + 1).fill(Number.NEGATIVE_INFINITY);
    const startOf = new Int32Array(length + 1);
    const idOf: (number | undefined)[] = new Array(length + 1);
    best[0] = 0;
    for (let start = 0; start < length; ) {
      const charEnd = start + (piece.codePointAt(start)! > 0xffff ? 2 : 1);
      const reached = best[start]!;
      let hasChar = false;
      const offer = (end: number, score: number, id: number | undefined) => {
        if (reached + score <= best[end]!) return;
        best[end] = reached + score;
        startOf[end] = start;
        idOf[end] = id;
      };
      let node: number | undefined = 0;
      for (let end = start; end < length; ) {
        node = edges.get(node * 65_536 + piece.charCodeAt(end++));
        if (node === undefined) break;
        if (idAt[node] === undefined) continue;
        offer(end, scoreAt[node]!, idAt[node]);
        hasChar ||= end === charEnd;
      }
      if (!hasChar) offer(charEnd, unkScore, undefined);
      start = charEnd;
    }
    const path: { start: number; end: number; id: number | undefined }[] = [];
    for (let end = length; end > 0; end = startOf[end]!) {
      path.push({ start: startOf[end]!, end, id: idOf[end] });
    }
    let afterUnk = false;
    for (const { start, end, id } of path.reverse()) {
      if (id !== undefined) out.push(id);
      else if (bytes)
        for (const byte of utf8.encode(piece.slice(start, end))) out.push(bytes[byte]!);
      else if (!afterUnk && options.unk !== undefined) out.push(options.unk);
      afterUnk = id === undefined;
    }
  };
}
