// Byte-pair encoding over token ids: the pair with the lowest rank is merged first, the leftmost on a tie,
// until no pair can be merged.

/** Appends the ids of one piece of text. */
export type TokenModel = (piece: string, ids: number[]) => void;

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
  /** A piece that is itself a token is encoded as that token, whatever its merges are. */
  ignoreMerges: boolean;
}

const CACHED_PIECES = 32_768;
const CACHED_LENGTH = 64;
/** A heap entry is rank * POSITIONS + position: one number that sorts as the pair does. */
const POSITIONS = 2 ** 32;
const NONE = -1;

export function bpeModel(options: BpeOptions): TokenModel {
  const { vocab, unk, bytes, ignoreMerges } = options;
  const mergedOf: number[] = [];
  const rankOf: number[] = [];
  // Both ids in one key; no vocabulary has 2^26 ids.
  const pairs = new Map<number, number>();
  const keyOf = (left: number, right: number) => left * 2 ** 26 + right;
  for (const { left, right, merged, rank } of options.merges) {
    const key = keyOf(left, right);
    if (pairs.has(key)) continue;
    pairs.set(key, mergedOf.length);
    mergedOf.push(merged);
    rankOf.push(rank);
  }
  const utf8 = new TextEncoder();
  const cache = new Map<string, readonly number[]>();

  function symbols(piece: string): number[] {
    const ids: number[] = [];
    let afterUnk = false;
    for (const char of piece) {
      const id = vocab.get(char);
      if (id !== undefined) ids.push(id);
      else if (bytes) for (const byte of utf8.encode(char)) ids.push(bytes[byte]!);
      else if (unk !== undefined && !(options.fuseUnk && afterUnk)) ids.push(unk);
      afterUnk = id === undefined && !bytes;
    }
    return ids;
  }

  function merge(ids: number[]): number[] {
    const count = ids.length;
    if (count < 2) return ids;
    const next = Int32Array.from({ length: count }, (_, i) => (i + 1 < count ? i + 1 : NONE));
    const previous = Int32Array.from({ length: count }, (_, i) => i - 1);
    const heap: number[] = [];
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
      // The entry is stale if its symbols have been merged with others since.
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
    return ids.filter((id) => id !== NONE);
  }

  return (piece, ids) => {
    const whole = ignoreMerges ? vocab.get(piece) : undefined;
    if (whole !== undefined) {
      ids.push(whole);
      return;
    }
    let found = cache.get(piece);
    if (!found) {
      found = merge(symbols(piece));
      if (piece.length <= CACHED_LENGTH) {
        if (cache.size >= CACHED_PIECES) cache.clear();
        cache.set(piece, found);
      }
    }
    for (const id of found) ids.push(id);
  };
}

/** The ids of <0x00> to <0xFF>, or undefined if the vocabulary lacks any of them. */
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
