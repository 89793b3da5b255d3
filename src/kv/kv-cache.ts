// Tracks the cache state of a model's sequences, as integers. Layers with the same kind of state form a group. A group
// of attention layers keeps keys and values in blocks, with a block table per sequence; sliding-window groups release
// blocks that have left the window. Recurrent layers keep a state of fixed size: one slot per sequence holds the states
// of all of them.
//
// A recurrent state cannot be rewound, so a prefix can be resumed only from a snapshot. A snapshot is a slot that is no
// longer written: the sequence continues in another slot, which the next step writes instead, without a copy. A
// snapshot is found by the key of the block it ends with, and evicted like a cached block, least recently used first.
import { BLOCK_TOKENS, BlockPool } from "./blocks.ts";
import { CachedTokens, type PrefixMiss } from "./cached-tokens.ts";

/** Index that stands for no block or no slot. */
export const NONE = -1;

export type CacheLayout = {
  groups: readonly {
    blocks: number;
    /** Sliding window in tokens; unlimited if absent. */
    window?: number | undefined;
  }[];
  /** Number of slots, if the model has recurrent layers. */
  slots?: number | undefined;
  /** Whether to record tokens so that prefix misses can be explained. */
  explains?: boolean | undefined;
};

/** A sequence, as the cache sees it. */
export interface Cached {
  readonly held: Held;
  readonly promptLength: number;
  /** Prefix lengths that other conversations may share, ascending. */
  readonly heads: readonly number[];
  /** Number of known tokens. */
  readonly length: number;
  /** Number of tokens computed; `launched` includes those in flight. */
  readonly computed: number;
  readonly launched: number;
  /** Whether the sequence ignores the prefix cache. */
  readonly fresh: boolean;
  /** Whether a step of the sequence may have to be recomputed, because its token mask may arrive late. */
  readonly revisable: boolean;
  /** Returns the key of block `index`, whose tokens must all be known; -1 is the root key. */
  key(index: number): string;
  tokens(from: number, to: number): Uint32Array;
}

/** The blocks and slot that one sequence holds. */
export class Held {
  /** Block table per group: entry i holds the tokens from i * BLOCK_TOKENS on; NONE once released. */
  tables: number[][];
  /** Per group, the number of leading blocks that are outside the window. */
  gone: number[];
  /** Slot of the recurrent state after the launched tokens. */
  slot = NONE;
  /** Prompt positions at which to take snapshots, ascending. */
  marks: number[] = [];
  /** Keys of the snapshots that the sequence has taken. */
  readonly snapshots = new Set<string>();
  /** Key of the only snapshot past the prompt: a newer one replaces it. */
  newest: string | undefined;

  constructor(groups: number) {
    this.tables = Array.from({ length: groups }, () => []);
    this.gone = Array<number>(groups).fill(0);
  }

  /** Number of blocks held, in all groups. */
  get blocks(): number {
    return this.tables.reduce((sum, table, group) => sum + table.length - this.gone[group]!, 0);
  }
}

/** A prefix found in the cache. */
export type Hit = {
  tokens: number;
  tables: number[][];
  /** Slot of the snapshot at the prefix's end; NONE without one. */
  slot: number;
  /** Tokens covered by cached blocks; more than `tokens` if a snapshot is missing. */
  reach: number;
};

export type BlockCopy = { group: number; from: number; to: number };

/** Slots that a step reads a state from and writes it to; `from` is NONE at the start of a sequence. */
export type SlotMove = { from: number; to: number };

/** The block copies and the slot move that a sequence's next tokens require. */
export type Advance = { copies: readonly BlockCopy[]; move: SlotMove | undefined };

type Group = { pool: BlockPool; window: number | undefined };

/** Distance between snapshots in a long prompt. */
const MARK_TOKENS = 2048;
/** Minimum distance between snapshots at the ends of shareable prefixes (`heads`). */
const HEAD_TOKENS = 64;

export class KvCache {
  readonly #groups: readonly Group[];
  readonly slots: BlockPool | undefined;
  readonly #cachedTokens: CachedTokens | undefined;
  #snapshots = { hits: 0, misses: 0 };

  constructor({ groups, slots, explains }: CacheLayout) {
    this.#groups = groups.map(({ blocks, window }) => ({ pool: new BlockPool(blocks), window }));
    this.slots = slots === undefined ? undefined : new BlockPool(slots);
    const most = this.#groups.reduce((sum, { pool }) => sum + pool.count, slots ?? 0);
    if (explains) this.#cachedTokens = new CachedTokens(most);
  }

  get pools(): readonly BlockPool[] {
    return this.#groups.map(({ pool }) => pool);
  }

  /** Number of blocks in each state, such as free or cached; `readGauges` reads them from any thread. */
  get gauges(): SharedArrayBuffer[] {
    return this.pools.map(({ gauges }) => gauges);
  }

  /** Number of blocks of the smallest group. */
  get fewestBlocks(): number {
    return Math.min(...this.pools.map(({ count }) => count));
  }

  /** Returns snapshot hits and misses since the last call. A miss: blocks are cached further than any snapshot. */
  takeSnapshotCounts(): { hits: number; misses: number } {
    const counts = this.#snapshots;
    this.#snapshots = { hits: 0, misses: 0 };
    return counts;
  }

  /** Maximum sequence length that the blocks can hold. */
  get maxLength(): number {
    const whole = this.#groups.filter(({ window }) => window === undefined);
    return Math.min(
      Number.POSITIVE_INFINITY,
      ...whole.map(({ pool }) => pool.count * BLOCK_TOKENS),
    );
  }

  /** Maximum tokens of one sequence per step. */
  get maxStride(): number {
    return this.#groups.reduce((least, { pool, window }) => {
      if (window === undefined) return least;
      const blocks = pool.count - Math.ceil(window / BLOCK_TOKENS) - 1;
      return Math.min(least, Math.max(blocks, 1) * BLOCK_TOKENS);
    }, Number.POSITIVE_INFINITY);
  }

  open(): Held {
    return new Held(this.#groups.length);
  }

  // ---- Room

  /** Quick check: if true, each of `sequences` sequences gets another block and slot; if false, `hasRoom` decides. */
  hasBlockFor(sequences: number): boolean {
    return (
      this.#groups.every(({ pool }) => sequences <= pool.available) &&
      (!this.slots || sequences <= this.slots.available)
    );
  }

  /** Whether each of these running sequences has room for `count` more tokens. */
  hasRoom(sequences: readonly Cached[], count: number): boolean {
    const total = (lacking: (sequence: Cached) => number) =>
      sequences.reduce((sum, sequence) => sum + lacking(sequence), 0);
    return (
      this.#groups.every(
        ({ pool }, group) => total((each) => this.#lacking(each, group, count)) <= pool.available,
      ) &&
      (!this.slots || total((each) => this.#lackingSlots(each)) <= this.slots.available)
    );
  }

  /** Number of tokens a running sequence has room for. */
  freeTokens(sequence: Cached): number {
    if (this.slots && this.#lackingSlots(sequence) > this.slots.available) return 0;
    const { held, launched } = sequence;
    return this.#groups.reduce((least, { pool }, group) => {
      const blocks = pool.available - (this.#sharesTail(sequence, group) ? 1 : 0);
      return Math.min(least, (held.tables[group]!.length + blocks) * BLOCK_TOKENS - launched);
    }, Number.POSITIVE_INFINITY);
  }

  /** Whether `count` tokens after a hit fit, with `spare` blocks left in each group. */
  canBegin({ tokens, tables, slot }: Hit, count: number, spare: number): boolean {
    // Cached blocks of the hit will be retained, so they are not available to `take`.
    const isIdle = (pool: BlockPool, block: number) =>
      block !== NONE && pool.references(block) === 0;
    const hasBlocks = this.#groups.every(({ pool }, group) => {
      const table = tables[group]!;
      const idle = table.reduce((sum, block) => sum + (isIdle(pool, block) ? 1 : 0), 0);
      const needed = Math.ceil((tokens + count) / BLOCK_TOKENS) - table.length + idle;
      return pool.available - needed >= spare;
    });
    const { slots } = this;
    return hasBlocks && (!slots || slots.available > (isIdle(slots, slot) ? 1 : 0));
  }

  /** Returns how many of `count` tokens to compute: up to the next snapshot position, else to the end of a block. */
  stride({ held, length }: Cached, start: number, count: number): number {
    if (!this.slots || start + count >= length) return this.#toMark(held.marks, start, count);
    const aligned = Math.floor((start + count) / BLOCK_TOKENS) * BLOCK_TOKENS - start;
    return this.#toMark(held.marks, start, aligned > 0 ? aligned : count);
  }

  #toMark(marks: readonly number[], start: number, count: number): number {
    const next = marks.find((mark) => mark > start);
    return next === undefined ? count : Math.min(count, next - start);
  }

  /** Number of blocks to allocate for `count` more tokens, including a copy of the last block if it is shared. */
  #lacking(sequence: Cached, group: number, count: number): number {
    const blocks = Math.ceil((sequence.launched + count) / BLOCK_TOKENS);
    const table = sequence.held.tables[group]!;
    return blocks - table.length + (this.#sharesTail(sequence, group) ? 1 : 0);
  }

  #lackingSlots({ held, revisable }: Cached): number {
    return revisable || !this.#ownsSlot(held) ? 1 : 0;
  }

  /** Whether the sequence may write to its slot, which is neither shared nor a snapshot. */
  #ownsSlot({ slot }: Held): boolean {
    const slots = this.slots!;
    return slot !== NONE && slots.references(slot) === 1 && !slots.isPublished(slot);
  }

  /** Whether the sequence's next token goes to a shared block. */
  #sharesTail({ held, launched }: Cached, group: number): boolean {
    const tail = held.tables[group]![Math.floor(launched / BLOCK_TOKENS)];
    return tail !== undefined && this.#groups[group]!.pool.references(tail) > 1;
  }

  // ---- Prefixes

  /** Finds the longest cached prefix, without the last token, which is always computed. */
  lookup(sequence: Cached): Hit {
    const { fresh, length } = sequence;
    let end = fresh ? 0 : Math.floor((length - 1) / BLOCK_TOKENS);
    for (const { pool, window } of this.#groups) {
      if (window !== undefined) continue;
      let found = 0;
      while (found < end && pool.find(sequence.key(found)) !== undefined) found++;
      end = found;
    }
    const reach = end * BLOCK_TOKENS;
    while (end > 0) {
      const shorter = this.#usableEnd(sequence, end);
      if (shorter === end) break;
      end = shorter;
    }
    const tables = this.#groups.map(({ pool, window }) => {
      const gone = firstSeen(end, window);
      return Array.from({ length: end }, (_, i) => (i < gone ? NONE : pool.find(sequence.key(i))!));
    });
    const slot = end > 0 ? (this.slots?.find(sequence.key(end - 1)) ?? NONE) : NONE;
    return { tokens: end * BLOCK_TOKENS, tables, slot, reach };
  }

  /** Returns `end` if windows and snapshot allow resuming after that many blocks, otherwise a lower number to try. */
  #usableEnd(sequence: Cached, end: number): number {
    if (this.slots && this.slots.find(sequence.key(end - 1)) === undefined) return end - 1;
    for (const { pool, window } of this.#groups) {
      if (window === undefined) continue;
      // If block i is missing, every end above i still has it in its window, so i is the next end to try.
      for (let i = end - 1; i >= firstSeen(end, window); i--) {
        if (pool.find(sequence.key(i)) === undefined) return i;
      }
    }
    return end;
  }

  /** Explains why the hit was not longer; undefined if no longer hit was possible, or misses are not recorded. */
  explain(sequence: Cached, { tokens: resumed, reach }: Hit): PrefixMiss | undefined {
    const { length, fresh } = sequence;
    const whole = Math.floor((length - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;
    if (!this.#cachedTokens || fresh || resumed === whole) return undefined;
    const next = sequence.tokens(reach, Math.min(reach + BLOCK_TOKENS, length));
    const before = sequence.key(reach / BLOCK_TOKENS - 1);
    const found = this.#cachedTokens.nearest(before, next, (key) => this.#isCached(key));
    const at = reach + found.common;
    return { at, token: sequence.tokens(at, at + 1)[0]!, cached: found.next, resumed };
  }

  #isCached(key: string): boolean {
    const pools = this.#groups.filter(({ window }) => window === undefined);
    if (pools.length > 0) return pools.every(({ pool }) => pool.find(key) !== undefined);
    return this.slots?.find(key) !== undefined;
  }

  /** Starts a waiting sequence from its prefix hit. */
  begin(sequence: Cached, { tokens, tables, slot, reach }: Hit): void {
    const { held, length, heads } = sequence;
    this.#groups.forEach(({ pool, window }, group) => {
      for (const block of tables[group]!) if (block !== NONE) pool.retain(block);
      held.gone[group] = firstSeen(tokens / BLOCK_TOKENS, window);
    });
    held.tables = tables;
    held.slot = slot;
    if (slot !== NONE) this.slots!.retain(slot);
    if (!this.slots) return;
    held.marks = marksOf(tokens, reach, length, heads);
    if (slot !== NONE) this.#snapshots.hits += 1;
    if (reach > tokens) this.#snapshots.misses += 1;
  }

  // ---- Steps

  /** Allocates blocks and a slot for a sequence's next tokens. The caller has checked that there is room. */
  advance(sequence: Cached, count: number): Advance {
    const { held, launched } = sequence;
    const copies: BlockCopy[] = [];
    this.#groups.forEach(({ pool }, group) => {
      const lacking = this.#lacking(sequence, group, count);
      if (lacking === 0) return;
      const table = held.tables[group]!;
      const taken = takeFrom(pool, lacking);
      if (this.#sharesTail(sequence, group)) {
        const index = Math.floor(launched / BLOCK_TOKENS);
        const [from, to] = [table[index]!, taken.shift()!];
        copies.push({ group, from, to });
        table[index] = to;
        pool.release(from);
      }
      table.push(...taken);
    });
    return { copies, move: this.slots && this.#move(sequence, this.slots) };
  }

  /** Returns the slots of a step: the state is updated in place, unless it must be preserved. */
  #move(sequence: Cached, slots: BlockPool): SlotMove {
    const { held } = sequence;
    const from = held.slot;
    const isKept = this.#isWanted(sequence, sequence.launched) && slots.available > 0;
    if (this.#ownsSlot(held) && !sequence.revisable && !isKept) return { from, to: from };
    [held.slot] = takeFrom(slots, 1) as [number];
    return { from, to: held.slot };
  }

  /** Lets forks share the slot that a step in flight writes to. */
  reserve(sequence: Cached, forks: readonly Cached[]): void {
    if (!this.slots) return;
    for (const { held } of forks) {
      held.slot = sequence.held.slot;
      this.slots.retain(held.slot);
    }
  }

  /** Shares the blocks of a sequence's computed tokens with a fork. */
  fork({ held }: Cached, from: Cached): void {
    const blocks = Math.ceil(from.computed / BLOCK_TOKENS);
    held.gone = [...from.held.gone];
    held.tables = from.held.tables.map((table) => table.slice(0, blocks));
    this.#groups.forEach(({ pool }, group) => {
      for (const block of held.tables[group]!) if (block !== NONE) pool.retain(block);
    });
  }

  /** Ends a step that began at `start`: publishes full blocks, and releases those that have left the window. */
  landed(sequence: Cached, start: number): void {
    const { held, computed } = sequence;
    const full = Math.floor(computed / BLOCK_TOKENS);
    if (this.#cachedTokens) this.#remember(sequence, Math.floor(start / BLOCK_TOKENS), full);
    for (const { pool, window, table, group } of this.#tables(held)) {
      const first = Math.max(Math.floor(start / BLOCK_TOKENS), held.gone[group]!);
      for (let i = first; i < full; i++) pool.publish(table[i]!, sequence.key(i));
      // If the step may be recomputed from `start`, the window of the token at `start` is still needed.
      const next = this.slots && sequence.revisable ? start : computed;
      const gone = window === undefined ? 0 : Math.floor((next - window) / BLOCK_TOKENS);
      for (let i = held.gone[group]!; i < gone; i++) {
        pool.release(table[i]!);
        table[i] = NONE;
        held.gone[group] = i + 1;
      }
    }
  }

  #remember(sequence: Cached, from: number, to: number): void {
    for (let i = from; i < to; i++) {
      const tokens = sequence.tokens(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS);
      this.#cachedTokens!.add(sequence.key(i - 1), sequence.key(i), tokens);
    }
    this.#cachedTokens!.sweep((key) => this.#isCached(key));
  }

  /** After a step that wrote to another slot: makes the old slot a snapshot, or frees it. Called after `landed`. */
  leave(sequence: Cached, start: number, move: SlotMove | undefined, isGood: boolean): void {
    if (!move || move.from === NONE || move.from === move.to) return;
    if (isGood && this.#isWanted(sequence, start)) this.#keep(sequence, start, move.from);
    this.slots!.release(move.from);
  }

  /** Rewinds a step that began at `start`; returns the first token to recompute. */
  stepBack(sequence: Cached, start: number, move: SlotMove | undefined): number {
    const { held, length } = sequence;
    const position = move ? start : length - 1;
    const blocks = Math.ceil(position / BLOCK_TOKENS);
    for (const { pool, table } of this.#tables(held)) {
      for (const block of table.splice(blocks)) pool.release(block);
    }
    if (!move) return position;
    this.slots!.release(held.slot);
    held.slot = move.from;
    if (move.from !== NONE) this.slots!.retain(move.from);
    return position;
  }

  /** Releases all blocks and the slot. The prefix cache keeps published blocks, and a state at the end of a block. */
  release(sequence: Cached, isGood: boolean): void {
    const { held, computed, launched } = sequence;
    for (const { pool, table } of this.#tables(held)) {
      // The last block is released first, so that it is evicted first and the prefix stays usable.
      for (const block of table.splice(0).reverse()) if (block !== NONE) pool.release(block);
    }
    held.gone.fill(0);
    if (held.slot !== NONE) {
      const isWhole = computed === launched && computed > 0 && computed % BLOCK_TOKENS === 0;
      if (isGood && isWhole && this.#ownsSlot(held)) this.#keep(sequence, computed, held.slot);
      this.slots!.release(held.slot);
      held.slot = NONE;
    }
    held.snapshots.clear();
    held.newest = undefined;
  }

  /** Removes the sequence's blocks and snapshots from the prefix cache, because their content is invalid. */
  unpublish({ held }: Cached): void {
    for (const { pool, table } of this.#tables(held)) {
      for (const block of table) if (block !== NONE) pool.unpublish(block);
    }
    for (const key of held.snapshots) this.slots!.drop(key);
  }

  /** Empties the prefix cache. */
  clear(): void {
    for (const pool of this.pools) pool.clear();
    this.slots?.clear();
  }

  /** Whether to snapshot the state at `position`: a planned position (`marks`), or the end of an answer's block. */
  #isWanted({ held, promptLength }: Cached, position: number): boolean {
    if (position === 0 || position % BLOCK_TOKENS !== 0) return false;
    return position >= promptLength || held.marks.includes(position);
  }

  #keep(sequence: Cached, position: number, slot: number): void {
    const { held, promptLength } = sequence;
    const key = sequence.key(position / BLOCK_TOKENS - 1);
    this.slots!.publish(slot, key);
    held.snapshots.add(key);
    if (position < promptLength) return;
    if (held.newest !== undefined && held.newest !== key) {
      this.slots!.drop(held.newest);
      held.snapshots.delete(held.newest);
    }
    held.newest = key;
  }

  // ---- Checks

  /** Throws unless these sequences and moves account for every reference to a block or slot. */
  check(holders: Iterable<Cached>, moves: Iterable<SlotMove>): void {
    const sequences = [...holders];
    for (const { pool, group } of this.#groups.map((each, group) => ({ ...each, group }))) {
      checkPool(
        pool,
        "block",
        sequences.flatMap(({ held }) => held.tables[group]!.filter((block) => block !== NONE)),
      );
    }
    if (!this.slots) return;
    const read = [...moves].filter(({ from, to }) => from !== to && from !== NONE);
    const held = sequences.map(({ held }) => held.slot).filter((slot) => slot !== NONE);
    checkPool(this.slots, "slot", [...held, ...read.map(({ from }) => from)]);
  }

  *#tables({ tables }: Held) {
    for (let group = 0; group < this.#groups.length; group++) {
      yield { ...this.#groups[group]!, table: tables[group]!, group };
    }
  }
}

/** Returns the first block in the sliding window of the token that follows `blocks` blocks. */
function firstSeen(blocks: number, window: number | undefined): number {
  if (window === undefined) return 0;
  return Math.max(0, Math.floor((blocks * BLOCK_TOKENS - window + 1) / BLOCK_TOKENS));
}

/**
 * Returns a prompt's snapshot positions: its last whole block, the end of its cached blocks, the ends of shareable
 * prefixes, and every MARK_TOKENS.
 */
function marksOf(hit: number, reach: number, length: number, heads: readonly number[]): number[] {
  const last = Math.floor((length - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;
  const marks = new Set([reach, last]);
  for (let at = MARK_TOKENS; at < last; at += MARK_TOKENS) marks.add(at);
  let before = 0;
  for (const head of heads) {
    const at = Math.floor(head / BLOCK_TOKENS) * BLOCK_TOKENS;
    if (at < before + HEAD_TOKENS) continue;
    marks.add(at);
    before = at;
  }
  return [...marks].filter((mark) => mark > hit && mark < length).sort((a, b) => a - b);
}

function takeFrom(pool: BlockPool, count: number): number[] {
  const taken = pool.take(count);
  if (!taken) throw new Error("a step was launched without room for it");
  return taken;
}

function checkPool(pool: BlockPool, what: string, held: readonly number[]): void {
  pool.check();
  const references = new Int32Array(pool.count);
  for (const each of held) references[each]! += 1;
  references.forEach((expected, each) => {
    const found = pool.references(each);
    if (found !== expected) {
      throw new Error(`${what} ${each} has ${found} references, ${expected} sequences hold it`);
    }
  });
}
