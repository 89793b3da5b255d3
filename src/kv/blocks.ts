// Allocates the blocks of the KV cache, as numbers. A block is free, held (with one reference per sequence), or
// cached: without references, but found by its key until it is evicted, least recently used first. The KV store
// (src/model/state) owns the keys and values themselves.
//
// The gauges are in a SharedArrayBuffer, so that other threads can read them.

/** Tokens in a block. */
export const BLOCK_TOKENS = 32;

const NONE = -1;

export type BlockGauges = {
  total: number;
  free: number;
  cached: number;
  held: number;
  /** Number of held blocks with more than one reference. */
  shared: number;
};

export class BlockPool {
  readonly count: number;
  /** Number of blocks in each state, such as free or cached; `readGauges` reads them from any thread. */
  readonly gauges: SharedArrayBuffer;
  readonly #gauges: Int32Array;
  readonly #references: Int32Array;
  // Links of two lists of blocks: the free ones, and the cached ones in LRU order.
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
    this.#references = new Int32Array(count);
    this.#next = new Int32Array(count);
    this.#previous = new Int32Array(count);
    this.#keys = Array.from({ length: count });
    this.#gauges[TOTAL] = count;
    for (let block = count - 1; block >= 0; block--) this.#toFree(block);
  }

  /** Number of blocks that `take` can return: free ones and evictable cached ones. */
  get available(): number {
    return this.#gauges[FREE]! + this.#gauges[CACHED]!;
  }

  references(block: number): number {
    return this.#references[block]!;
  }

  /** Returns the state of a block: 0 free, 1 cached, 2 held, 3 shared. */
  use(block: number): number {
    const references = this.#references[block]!;
    if (references > 0) return references > 1 ? 3 : 2;
    return this.#keys[block] === undefined ? 0 : 1;
  }

  /** Allocates `count` blocks with one reference each; undefined if too few are available. */
  take(count: number): number[] | undefined {
    if (count > this.available) return undefined;
    return Array.from({ length: count }, () => this.#takeOne());
  }

  /** Adds a reference to a held or cached block. */
  retain(block: number): void {
    if (this.#references[block] === 0) {
      if (this.#keys[block] === undefined) throw new Error(`block ${block} is free`);
      this.#unlinkCached(block);
      this.#gauges[HELD]! += 1;
    }
    this.#references[block]! += 1;
    if (this.#references[block] === 2) this.#gauges[SHARED]! += 1;
  }

  /** Drops a reference. A block without references becomes cached if it is published, otherwise free. */
  release(block: number): void {
    if (!this.#references[block]) throw new Error(`block ${block} was released once too often`);
    this.#references[block]! -= 1;
    if (this.#references[block] === 1) this.#gauges[SHARED]! -= 1;
    if (this.#references[block] !== 0) return;
    this.#gauges[HELD]! -= 1;
    if (this.#keys[block] === undefined) this.#toFree(block);
    else this.#toCached(block);
  }

  /** Makes a full block findable by its key, unless another block already has that key. */
  publish(block: number, key: string): void {
    if (!this.#references[block]) throw new Error(`block ${block} is not held`);
    if (this.#keys[block] !== undefined || this.#byKey.has(key)) return;
    this.#keys[block] = key;
    this.#byKey.set(key, block);
  }

  /** Removes a held block with invalid content from the prefix cache. */
  unpublish(block: number): void {
    const key = this.#keys[block];
    if (key === undefined) return;
    this.#byKey.delete(key);
    this.#keys[block] = undefined;
  }

  isPublished(block: number): boolean {
    return this.#keys[block] !== undefined;
  }

  /** Frees the block with this key, unless it is held. */
  drop(key: string): void {
    const block = this.#byKey.get(key);
    if (block === undefined || this.#references[block]) return;
    this.#removeCached(block);
    this.#toFree(block);
  }

  /** Returns the block with this key. Unless it is retained, the next `take` may evict it. */
  find(key: string): number | undefined {
    return this.#byKey.get(key);
  }

  /** Evicts all cached blocks. */
  clear(): void {
    while (this.#oldest !== NONE) this.#toFree(this.#evict());
  }

  /** Throws unless every block is in exactly one state and the gauges match. */
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
      if (this.#keys[block] !== key)
        throw new Error(`block ${block} is found by the key of another block`);
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

  /** Removes the least recently used cached block from its list and clears its key. */
  #evict(): number {
    const block = this.#oldest;
    this.#removeCached(block);
    return block;
  }

  #removeCached(block: number): void {
    this.#unlinkCached(block);
    this.#byKey.delete(this.#keys[block]!);
    this.#keys[block] = undefined;
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

/** Sums the gauges of several pools; callable from any thread. */
export function readGauges(...pools: readonly SharedArrayBuffer[]): BlockGauges {
  const count = (at: number) => pools.reduce((sum, gauges) => sum + new Int32Array(gauges)[at]!, 0);
  return {
    total: count(TOTAL),
    free: count(FREE),
    cached: count(CACHED),
    held: count(HELD),
    shared: count(SHARED),
  };
}
