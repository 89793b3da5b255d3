// Blocks of the KV cache as numbers. A block is free, held by one or more sequences (its references), or
// cached: held by nobody, but still findable by the hash of the tokens in it until it is evicted, the
// least recently used first. Where the keys and values lie is the store's business (model/kv-store).
//
// The state is typed arrays over one SharedArrayBuffer, so that another thread can read the gauges.

/** Tokens in a block. */
export const BLOCK_TOKENS = 32;

const NONE = -1;

export type BlockGauges = {
  total: number;
  free: number;
  cached: number;
  held: number;
  /** Of those held: with more than one reference. */
  shared: number;
};

export class BlockPool {
  readonly count: number;
  /** What `readGauges` reads from another thread. */
  readonly gauges: SharedArrayBuffer;
  readonly #gauges: Int32Array;
  readonly #references: Int32Array;
  // The list of free blocks and that of cached ones; the cached are in order of their last use.
  readonly #next: Int32Array;
  readonly #previous: Int32Array;
  #firstFree = NONE;
  #oldest = NONE;
  #newest = NONE;
  readonly #keys: (string | undefined)[];
  readonly #byKey = new Map<string, number>();

  constructor(count: number) {
    this.count = count;
    this.gauges = new SharedArrayBuffer(20);
    this.#gauges = new Int32Array(this.gauges);
    const state = new SharedArrayBuffer(count * 12);
    this.#references = new Int32Array(state, 0, count);
    this.#next = new Int32Array(state, count * 4, count);
    this.#previous = new Int32Array(state, count * 8, count);
    this.#keys = Array.from({ length: count });
    this.#gauges[TOTAL] = count;
    for (let block = count - 1; block >= 0; block--) this.#toFree(block);
  }

  /** Blocks that `take` can give: those that are free, and those that it may evict. */
  get available(): number {
    return this.#gauges[FREE]! + this.#gauges[CACHED]!;
  }

  references(block: number): number {
    return this.#references[block]!;
  }

  /** So many blocks, each with one reference, or none at all. */
  take(count: number): number[] | undefined {
    if (count > this.available) return undefined;
    return Array.from({ length: count }, () => this.#takeOne());
  }

  /** One more reference to a block that is held or cached. */
  retain(block: number): void {
    if (this.#references[block] === 0) {
      if (this.#keys[block] === undefined) throw new Error(`block ${block} is free`);
      this.#unlinkCached(block);
      this.#gauges[HELD]! += 1;
    }
    this.#references[block]! += 1;
    if (this.#references[block] === 2) this.#gauges[SHARED]! += 1;
  }

  /** One reference less. The last one leaves a block cached if it can be found, free if not. */
  release(block: number): void {
    if (!this.#references[block]) throw new Error(`block ${block} was released once too often`);
    this.#references[block]! -= 1;
    if (this.#references[block] === 1) this.#gauges[SHARED]! -= 1;
    if (this.#references[block] !== 0) return;
    this.#gauges[HELD]! -= 1;
    if (this.#keys[block] === undefined) this.#toFree(block);
    else this.#toCached(block);
  }

  /** Makes a full block findable. Where another block has these tokens already, that one stays it. */
  publish(block: number, key: string): void {
    if (!this.#references[block]) throw new Error(`block ${block} is not held`);
    if (this.#keys[block] !== undefined || this.#byKey.has(key)) return;
    this.#keys[block] = key;
    this.#byKey.set(key, block);
  }

  /** Makes a held block unfindable again: what is in it turned out to be wrong. */
  unpublish(block: number): void {
    const key = this.#keys[block];
    if (key === undefined) return;
    this.#byKey.delete(key);
    this.#keys[block] = undefined;
  }

  /** The block with these tokens. It may be evicted at the next `take` unless it is retained. */
  find(key: string): number | undefined {
    return this.#byKey.get(key);
  }

  /** Forgets all cached blocks. */
  clear(): void {
    while (this.#oldest !== NONE) this.#toFree(this.#evict());
  }

  /** Throws unless every block is in exactly one state and the books agree. */
  check(): void {
    const seen = new Int8Array(this.count);
    const mark = (block: number, what: string) => {
      if (seen[block]) throw new Error(`block ${block} is ${what} and something else`);
      seen[block] = 1;
    };
    let free = 0;
    for (let block = this.#firstFree; block !== NONE; block = this.#next[block]!) {
      mark(block, "free");
      if (this.#references[block] || this.#keys[block])
        throw new Error(`free block ${block} is in use`);
      free += 1;
    }
    let cached = 0;
    let before = NONE;
    for (let block = this.#oldest; block !== NONE; block = this.#next[block]!) {
      mark(block, "cached");
      const key = this.#keys[block];
      if (this.#references[block] || key === undefined || this.#previous[block] !== before) {
        throw new Error(`cached block ${block} is not in order`);
      }
      before = block;
      cached += 1;
    }
    if (before !== this.#newest) throw new Error("the newest cached block is not the last");
    let [held, shared] = [0, 0];
    for (let block = 0; block < this.count; block++) {
      if (this.#references[block]! > 0) {
        mark(block, "held");
        held += 1;
        if (this.#references[block]! > 1) shared += 1;
      }
    }
    if (free + cached + held !== this.count) throw new Error("a block is in no state");
    const { free: f, cached: c, held: h, shared: s } = readGauges(this.gauges);
    if (f !== free || c !== cached || h !== held || s !== shared) {
      throw new Error("the gauges are wrong");
    }
    for (const [key, block] of this.#byKey) {
      if (this.#keys[block] !== key) throw new Error(`block ${block} is found by another's key`);
    }
    const keyed = this.#keys.filter((key) => key !== undefined).length;
    if (keyed !== this.#byKey.size) throw new Error("a key is lost");
  }

  #takeOne(): number {
    const block = this.#firstFree === NONE ? this.#evict() : this.#shiftFree();
    this.#references[block] = 1;
    this.#gauges[HELD]! += 1;
    return block;
  }

  #shiftFree(): number {
    const block = this.#firstFree;
    this.#firstFree = this.#next[block]!;
    this.#gauges[FREE]! -= 1;
    return block;
  }

  #toFree(block: number): void {
    this.#next[block] = this.#firstFree;
    this.#firstFree = block;
    this.#gauges[FREE]! += 1;
  }

  /** The cached block that was used least recently, in no list and with no key. */
  #evict(): number {
    const block = this.#oldest;
    this.#unlinkCached(block);
    this.#byKey.delete(this.#keys[block]!);
    this.#keys[block] = undefined;
    return block;
  }

  #toCached(block: number): void {
    this.#previous[block] = this.#newest;
    this.#next[block] = NONE;
    if (this.#newest === NONE) this.#oldest = block;
    else this.#next[this.#newest] = block;
    this.#newest = block;
    this.#gauges[CACHED]! += 1;
  }

  #unlinkCached(block: number): void {
    const [previous, next] = [this.#previous[block]!, this.#next[block]!];
    if (previous === NONE) this.#oldest = next;
    else this.#next[previous] = next;
    if (next === NONE) this.#newest = previous;
    else this.#previous[next] = previous;
    this.#gauges[CACHED]! -= 1;
  }
}

const [FREE, CACHED, HELD, TOTAL, SHARED] = [0, 1, 2, 3, 4] as const;

/** The state of a pool, from any thread. */
export function readGauges(gauges: SharedArrayBuffer): BlockGauges {
  const numbers = new Int32Array(gauges);
  return {
    total: numbers[TOTAL]!,
    free: numbers[FREE]!,
    cached: numbers[CACHED]!,
    held: numbers[HELD]!,
    shared: numbers[SHARED]!,
  };
}
