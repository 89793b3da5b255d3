// Byte-pair encoding over token ids: merges the pair with the lowest rank first, the leftmost on a tie, until no pair
// can be merged.
//
// A long piece is encoded in windows, with the same result: a token sequence is the encoding of its text if and only
// if every two adjacent tokens are the encoding of their joint text. (The first merge across a boundary would also
// happen in the two tokens alone, because until then nothing outside has changed them.) So each window drops its last
// tokens, the next window starts there, and only the two tokens at the seam have to be checked.
import type { TokenIds } from "./token-ids.ts";
import type { Spelling, TokenModel } from "./token-model.ts";

export interface Merge {
  left: number;
  right: number;
  merged: number;
  /** Pairs with a lower rank are merged first. */
  rank: number;
}

export interface BpeOptions {
  vocab: ReadonlyMap<string, number>;
  merges: Iterable<Merge>;
  unk: number | undefined;
  fuseUnk: boolean;
  /** Byte-fallback tokens, for characters that the vocabulary lacks. */
  bytes: readonly number[] | undefined;
  /** A piece that is a token is encoded as that token, regardless of merges. */
  ignoreMerges: boolean;
}

/** Symbols (ids of single characters or bytes) that are merged at a time: a few milliseconds of work. */
const WINDOW = 4096;
/** Fraction of a window encoded again by the next one: its last tokens depend on the text that follows. */
const TAIL = 1 / 8;
/** A heap entry is rank * POSITIONS + position: one number that sorts by both. */
const POSITIONS = 2 ** 32;
const NONE = -1;

/** Merged tokens, and for each the index of its first symbol. */
type Merged = { ids: number[]; starts: number[] };

export function bpeModel(options: BpeOptions, windowSize = WINDOW): TokenModel {
  const { vocab, unk, bytes, ignoreMerges } = options;
  const mergedOf: number[] = [];
  const rankOf: number[] = [];
  // The key combines both ids; no vocabulary has 2^26 ids.
  const pairs = new Map<number, number>();
  const keyOf = (left: number, right: number) => left * 2 ** 26 + right;
  for (const { left, right, merged, rank } of options.merges) {
    const key = keyOf(left, right);
    if (pairs.has(key)) continue;
    pairs.set(key, mergedOf.length);
    mergedOf.push(merged);
    rankOf.push(rank);
  }
  const symbolOf = new Map<number, number>();
  for (const [text, id] of vocab) {
    const code = text.codePointAt(0);
    if (code !== undefined && String.fromCodePoint(code) === text) symbolOf.set(code, id);
  }
  const utf8 = new TextEncoder();
  // Scratch memory of `merge`, which never nests.
  let next = new Int32Array(64);
  let previous = new Int32Array(64);
  const heap: number[] = [];

  /** Appends a text's symbols. Returns whether its last character is unknown; `afterUnk`: that of the text before. */
  function addSymbols(text: string, symbols: number[], afterUnk: boolean): boolean {
    let isUnk = afterUnk;
    for (let at = 0; at < text.length; ) {
      const code = text.codePointAt(at)!;
      at += code > 0xffff ? 2 : 1;
      const id = symbolOf.get(code);
      if (id !== undefined) symbols.push(id);
      else if (bytes) {
        for (const byte of utf8.encode(String.fromCodePoint(code))) symbols.push(bytes[byte]!);
      } else if (unk !== undefined && !(options.fuseUnk && isUnk)) symbols.push(unk);
      isUnk = id === undefined && !bytes;
    }
    return isUnk;
  }

  function merge(symbols: readonly number[]): Merged {
    const ids = symbols.slice();
    const count = ids.length;
    if (count > next.length) {
      next = new Int32Array(2 * count);
      previous = new Int32Array(2 * count);
    }
    for (let i = 0; i < count; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
    }
    if (count > 0) next[count - 1] = NONE;
    const pairAt = (position: number) => {
      const after = next[position]!;
      return after === NONE ? undefined : pairs.get(keyOf(ids[position]!, ids[after]!));
    };
    const offer = (position: number) => {
      const pair = pairAt(position);
      if (pair !== undefined) push(heap, rankOf[pair]! * POSITIONS + position);
    };
    for (let i = 0; i + 1 < count; i++) offer(i);
    while (heap.length > 0) {
      const entry = pop(heap);
      const position = entry % POSITIONS;
      // The entry is stale if the symbol has since been merged.
      if (ids[position] === NONE) continue;
      const pair = pairAt(position);
      if (pair === undefined || rankOf[pair] !== (entry - position) / POSITIONS) continue;
      const gone = next[position]!;
      const after = next[gone]!;
      ids[position] = mergedOf[pair]!;
      ids[gone] = NONE;
      next[position] = after;
      if (after !== NONE) previous[after] = position;
      offer(position);
      if (previous[position] !== NONE) offer(previous[position]!);
    }
    const starts: number[] = [];
    for (let at = count > 0 ? 0 : NONE; at !== NONE; at = next[at]!) {
      ids[starts.length] = ids[at]!;
      starts.push(at);
    }
    ids.length = starts.length;
    return { ids, starts };
  }

  /** Whether two tokens, given as symbols, stay separate when encoded together. */
  function stayApart(left: readonly number[], right: readonly number[]): boolean {
    const { starts } = merge([...left, ...right]);
    return starts.length === 2 && starts[1] === left.length;
  }

  /** Encodes a long piece in windows; returns false if a window was too small to find a token boundary. */
  function* encodeInWindows(
    parts: Iterable<string>,
    size: number,
    ids: TokenIds,
  ): Generator<void, boolean> {
    const unread = parts[Symbol.iterator]();
    const tail = Math.ceil(size * TAIL);
    let symbols: number[] = [];
    let lastKept: number[] | undefined;
    let afterUnk = false;
    for (let isLast = false; !isLast; ) {
      while (!isLast && symbols.length < size) {
        const part = unread.next();
        if (part.done) isLast = true;
        else afterUnk = addSymbols(part.value, symbols, afterUnk);
      }
      const merged = merge(symbols);
      const { starts } = merged;
      const startOf = (token: number) => starts[token] ?? symbols.length;
      if (lastKept && symbols.length > 0) {
        if (!stayApart(lastKept, symbols.slice(0, startOf(1)))) return false;
      }
      let kept = starts.length;
      if (!isLast) while (kept > 0 && startOf(kept) > symbols.length - tail) kept--;
      if (kept === 0 && !isLast) return false;
      for (let i = 0; i < kept; i++) ids.push(merged.ids[i]!);
      lastKept = symbols.slice(startOf(kept - 1), startOf(kept));
      symbols = symbols.slice(startOf(kept));
      yield;
    }
    return true;
  }

  return {
    encode(piece) {
      const whole = ignoreMerges ? vocab.get(piece) : undefined;
      if (whole !== undefined) return [whole];
      const symbols: number[] = [];
      addSymbols(piece, symbols, false);
      return merge(symbols).ids;
    },
    *encodeLong(piece, spell, ids) {
      const { length } = ids;
      let size = windowSize;
      while (!(yield* encodeInWindows(partsOf(piece, size, spell), size, ids))) {
        ids.length = length;
        size *= 2;
      }
    },
  };
}

/** Splits the piece into parts of about `size` characters and spells each. */
function* partsOf(piece: string, size: number, spell: Spelling): Generator<string> {
  for (let start = 0; start < piece.length; ) {
    const end = start + size;
    const isPair = (piece.charCodeAt(end - 1) & 0xfc00) === 0xd800;
    yield spell(piece.slice(start, isPair ? end + 1 : end));
    start = isPair ? end + 1 : end;
  }
}

/** Returns the ids of <0x00> to <0xFF>; undefined if the vocabulary lacks any of them. */
export function byteTokens(vocab: ReadonlyMap<string, number>): number[] | undefined {
  const ids: number[] = [];
  for (let byte = 0; byte < 256; byte++) {
    const id = vocab.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    if (id === undefined) return undefined;
    ids.push(id);
  }
  return ids;
}

function push(heap: number[], entry: number): void {
  let at = heap.length;
  heap.push(entry);
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (heap[parent]! <= entry) break;
    heap[at] = heap[parent]!;
    at = parent;
  }
  heap[at] = entry;
}

function pop(heap: number[]): number {
  const top = heap[0]!;
  const entry = heap.pop()!;
  const size = heap.length;
  if (size === 0) return top;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= size) break;
    if (child + 1 < size && heap[child + 1]! < heap[child]!) child++;
    if (heap[child]! >= entry) break;
    heap[at] = heap[child]!;
    at = child;
  }
  heap[at] = entry;
  return top;
}
