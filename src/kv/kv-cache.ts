// What the sequences of a model keep, as numbers. Layers that keep the same are a group. A group of attention
// layers keeps keys and values in blocks of tokens, with a table of them for each sequence; where its layers see
// only a window, blocks that no later token sees are given back. Recurrent layers keep a state of fixed size: one
// slot of a sequence holds the states of all of them.
//
// The state of a sequence cannot be taken back to an earlier token, so a prefix can be resumed only where a snapshot
// of it was left. A snapshot is a slot that is no longer written to: the sequence goes on in another one, which the
// next step writes instead, at no cost. It is found by the key of the block that it ends with, and evicted like a
// cached block, the least recently used first.
import { BLOCK_TOKENS, BlockPool } from "./blocks.ts";
import { CachedTokens, type PrefixMiss } from "./cached-tokens.ts";

/** No block, no slot. */
export const NONE = -1;

export type CacheLayout = {
  groups: readonly {
    blocks: number;
    /** How many of the latest tokens its layers see; all unless it says. */
    window?: number | undefined;
  }[];
  /** Slots of recurrent layers, where there are any. */
  slots?: number | undefined;
  /** Whether misses can be explained, which takes a little time and memory. */
  explains?: boolean | undefined;
};

/** What the cache asks of a sequence. */
export interface Cached {
  readonly held: Held;
  readonly promptLength: number;
  /** Lengths of its prompt's beginnings that other prompts may share, in ascending order. */
  readonly heads: readonly number[];
  /** Tokens that are known. */
  readonly length: number;
  /** Tokens that were computed, and those that steps under way compute too. */
  readonly computed: number;
  readonly launched: number;
  /** It takes nothing from the cache. */
  readonly fresh: boolean;
  /** A step of it may have to be computed again. */
  readonly revisable: boolean;
  /** The key of its block number `index`, which is full of known tokens; of -1, what the first is hashed from. */
  key(index: number): string;
  tokens(from: number, to: number): Uint32Array;
}

/** What one sequence holds. */
export class Held {
  /** By group, its blocks in order: block i holds the tokens from i * BLOCK_TOKENS on. NONE: it was given back. */
  tables: number[][];
  /** By group, how many blocks at the beginning were given back. */
  gone: number[];
  /** The state after its launched tokens. */
  slot = NONE;
  /** Where in its prompt snapshots are wanted, in ascending order. */
  marks: number[] = [];
  /** The keys of snapshots that it has left. */
  readonly snapshots = new Set<string>();
  /** The last of them that is past its prompt; there is one at a time. */
  newest: string | undefined;

  constructor(groups: number) {
    this.tables = Array.from({ length: groups }, () => []);
    this.gone = Array<number>(groups).fill(0);
  }

  /** Of all groups. */
  get blocks(): number {
    return this.tables.reduce((sum, table, group) => sum + table.length - this.gone[group]!, 0);
  }
}

/** A prefix that need not be computed. */
export type Hit = {
  tokens: number;
  tables: number[][];
  /** The snapshot at its end. */
  slot: number;
  /** How far its blocks reach; past `tokens` a snapshot is missing. */
  reach: number;
};

export type BlockCopy = { group: number; from: number; to: number };

/** The slot that a step reads a state from, NONE where the sequence begins, and the one that it writes to. */
export type SlotMove = { from: number; to: number };

/** What has to be done for a sequence's next tokens. */
export type Advance = { copies: readonly BlockCopy[]; move: SlotMove | undefined };

type Group = { pool: BlockPool; window: number | undefined };

/** Snapshots in a long prompt are so far apart. */
const MARK_TOKENS = 2048;
/** A head is worth a slot if it is so much longer than nothing, or than another head. */
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

  /** What `readGauges` reads from another thread. */
  get gauges(): SharedArrayBuffer[] {
    return this.pools.map(({ gauges }) => gauges);
  }

  /** Of the smallest group. */
  get fewestBlocks(): number {
    return Math.min(...this.pools.map(({ count }) => count));
  }

  /** Since the last call: sequences that began from a snapshot, and those whose blocks were cached farther. */
  takeSnapshotCounts(): { hits: number; misses: number } {
    const counts = this.#snapshots;
    this.#snapshots = { hits: 0, misses: 0 };
    return counts;
  }

  /** The longest sequence that there are blocks for. */
  get maxLength(): number {
    const whole = this.#groups.filter(({ window }) => window === undefined);
    return Math.min(
      Number.POSITIVE_INFINITY,
      ...whole.map(({ pool }) => pool.count * BLOCK_TOKENS),
    );
  }

  /** The most tokens of a sequence that a step can compute. */
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

  /** Whether so many sequences can have a token more, whatever they are. */
  hasBlockFor(sequences: number): boolean {
    return (
      this.#groups.every(({ pool }) => sequences <= pool.available) &&
      (!this.slots || sequences <= this.slots.available)
    );
  }

  /** Whether each of these running sequences can have so many tokens more. */
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

  /** How many more tokens of a running sequence there is room for. */
  freeTokens(sequence: Cached): number {
    if (this.slots && this.#lackingSlots(sequence) > this.slots.available) return 0;
    const { held, launched } = sequence;
    return this.#groups.reduce((least, { pool }, group) => {
      const blocks = pool.available - (this.#sharesTail(sequence, group) ? 1 : 0);
      return Math.min(least, (held.tables[group]!.length + blocks) * BLOCK_TOKENS - launched);
    }, Number.POSITIVE_INFINITY);
  }

  /** Whether so many tokens can be computed behind a hit, with so many blocks to spare in each group. */
  canBegin({ tokens, tables, slot }: Hit, count: number, spare: number): boolean {
    // What is cached and hit is no longer available to be taken.
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

  /** How many of the next `count` tokens a step computes: up to a mark, or else whole blocks if it can. */
  stride({ held, length }: Cached, start: number, count: number): number {
    if (!this.slots || start + count >= length) return this.#toMark(held.marks, start, count);
    const aligned = Math.floor((start + count) / BLOCK_TOKENS) * BLOCK_TOKENS - start;
    return this.#toMark(held.marks, start, aligned > 0 ? aligned : count);
  }

  #toMark(marks: readonly number[], start: number, count: number): number {
    const next = marks.find((mark) => mark > start);
    return next === undefined ? count : Math.min(count, next - start);
  }

  /** Blocks that it lacks for so many more tokens: new ones, and one that it must not write to. */
  #lacking(sequence: Cached, group: number, count: number): number {
    const blocks = Math.ceil((sequence.launched + count) / BLOCK_TOKENS);
    const table = sequence.held.tables[group]!;
    return blocks - table.length + (this.#sharesTail(sequence, group) ? 1 : 0);
  }

  #lackingSlots({ held, revisable }: Cached): number {
    return revisable || !this.#ownsSlot(held) ? 1 : 0;
  }

  /** Whether its slot is its own to write to. */
  #ownsSlot({ slot }: Held): boolean {
    const slots = this.slots!;
    return slot !== NONE && slots.references(slot) === 1 && !slots.isPublished(slot);
  }

  /** Whether the block that its next token goes to is shared. */
  #sharesTail({ held, launched }: Cached, group: number): boolean {
    const tail = held.tables[group]![Math.floor(launched / BLOCK_TOKENS)];
    return tail !== undefined && this.#groups[group]!.pool.references(tail) > 1;
  }

  // ---- Prefixes

  /** The longest prefix that needs no computing. The last token is always computed. */
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

  /** `end` if there is all else that is needed behind so many blocks, or a lower number to try. */
  #usableEnd(sequence: Cached, end: number): number {
    if (this.slots && this.slots.find(sequence.key(end - 1)) === undefined) return end - 1;
    for (const { pool, window } of this.#groups) {
      if (window === undefined) continue;
      // A block that is missing here is missing for every end behind it that is tried.
      for (let i = end - 1; i >= firstSeen(end, window); i--) {
        if (pool.find(sequence.key(i)) === undefined) return i;
      }
    }
    return end;
  }

  /** Why a sequence did not hit more; undefined where it could not, or nobody wants to know. */
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

  /** A waiting sequence begins to run with what it has hit. */
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

  /** Gives a sequence what its next tokens need. There must be room. */
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

  /** The step goes on in its slot, or in another one where the state is still needed as it is. */
  #move(sequence: Cached, slots: BlockPool): SlotMove {
    const { held } = sequence;
    const from = held.slot;
    const isKept = this.#isWanted(sequence, sequence.launched) && slots.available > 0;
    if (this.#ownsSlot(held) && !sequence.revisable && !isKept) return { from, to: from };
    [held.slot] = takeFrom(slots, 1) as [number];
    return { from, to: held.slot };
  }

  /** Forks will begin with the state that a step under way makes. */
  reserve(sequence: Cached, forks: readonly Cached[]): void {
    if (!this.slots) return;
    for (const { held } of forks) {
      held.slot = sequence.held.slot;
      this.slots.retain(held.slot);
    }
  }

  /** A fork begins where a sequence's computed tokens end. */
  fork({ held }: Cached, from: Cached): void {
    const blocks = Math.ceil(from.computed / BLOCK_TOKENS);
    held.gone = [...from.held.gone];
    held.tables = from.held.tables.map((table) => table.slice(0, blocks));
    this.#groups.forEach(({ pool }, group) => {
      for (const block of held.tables[group]!) if (block !== NONE) pool.retain(block);
    });
  }

  /** A step from `start` on has landed: what is full can be found, what nobody sees any more is given back. */
  landed(sequence: Cached, start: number): void {
    const { held, computed } = sequence;
    const full = Math.floor(computed / BLOCK_TOKENS);
    if (this.#cachedTokens) this.#remember(sequence, Math.floor(start / BLOCK_TOKENS), full);
    for (const { pool, window, table, group } of this.#tables(held)) {
      const first = Math.max(Math.floor(start / BLOCK_TOKENS), held.gone[group]!);
      for (let i = first; i < full; i++) pool.publish(table[i]!, sequence.key(i));
      // What may be computed again sees one more than what comes next.
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

  /** After all else that a landed step brought: the slot that it has left is a snapshot, or free. */
  leave(sequence: Cached, start: number, move: SlotMove | undefined, isGood: boolean): void {
    if (!move || move.from === NONE || move.from === move.to) return;
    if (isGood && this.#isWanted(sequence, start)) this.#keep(sequence, start, move.from);
    this.slots!.release(move.from);
  }

  /** It is to compute again what a step from `start` on has computed; returns from which token on. */
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

  /** It holds nothing any more. What it leaves can be hit, its state too if that is at the end of a block. */
  release(sequence: Cached, isGood: boolean): void {
    const { held, computed, launched } = sequence;
    for (const { pool, table } of this.#tables(held)) {
      // The last block first: it is evicted first, and the beginning can be hit longest.
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

  /** What it computed is wrong and must not be hit. */
  unpublish({ held }: Cached): void {
    for (const { pool, table } of this.#tables(held)) {
      for (const block of table) if (block !== NONE) pool.unpublish(block);
    }
    for (const key of held.snapshots) this.slots!.drop(key);
  }

  /** Nothing can be hit any more. */
  clear(): void {
    for (const pool of this.pools) pool.clear();
    this.slots?.clear();
  }

  /** Whether the state after so many tokens should be kept: at marks, and at the last whole block of an answer. */
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

  /** Throws unless every block and slot is accounted for by these sequences and the slots that steps read. */
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

/** The first block that a token behind so many blocks sees. */
function firstSeen(blocks: number, window: number | undefined): number {
  if (window === undefined) return 0;
  return Math.max(0, Math.floor((blocks * BLOCK_TOKENS - window + 1) / BLOCK_TOKENS));
}

/**
 * Where a prompt leaves snapshots: at its last whole block, where its blocks no longer match others', where its heads
 * end, and every so often.
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
