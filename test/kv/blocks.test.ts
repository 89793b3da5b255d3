import { describe, expect, test } from "bun:test";
import { BlockPool, readGauges } from "../../src/kv/blocks.ts";

const gauges = (pool: BlockPool) => readGauges(pool.gauges);

describe("a pool of blocks", () => {
  test("gives as many blocks as asked for, or none", () => {
    const pool = new BlockPool(4);
    expect(pool.take(5)).toBeUndefined();
    expect(gauges(pool)).toEqual({ total: 4, free: 4, cached: 0, held: 0, shared: 0 });
    expect(new Set(pool.take(4))).toEqual(new Set([0, 1, 2, 3]));
    expect(pool.take(1)).toBeUndefined();
    expect(pool.take(0)).toEqual([]);
    pool.check();
  });

  test("counts references: the last release frees", () => {
    const pool = new BlockPool(2);
    const [block] = pool.take(1)!;
    pool.retain(block!);
    expect(pool.references(block!)).toBe(2);
    pool.release(block!);
    expect(gauges(pool).held).toBe(1);
    pool.release(block!);
    expect(gauges(pool)).toEqual({ total: 2, free: 2, cached: 0, held: 0, shared: 0 });
    pool.check();
  });

  test("counts the blocks with more than one reference, each once", () => {
    const pool = new BlockPool(3);
    const [a, b] = pool.take(2) as [number, number];
    pool.publish(a, "a");
    const shared = () => {
      pool.check();
      return gauges(pool).shared;
    };
    expect(shared()).toBe(0);
    const counts = [
      () => pool.retain(a),
      () => pool.retain(a),
      () => pool.retain(b),
      () => pool.release(a),
      () => pool.release(a),
      () => pool.release(b),
      () => pool.release(a),
      // A hit: cached, then held by one sequence.
      () => pool.retain(a),
    ].map((change) => {
      change();
      return shared();
    });
    expect(counts).toEqual([1, 1, 2, 2, 1, 0, 0, 0]);
  });

  test("refuses to release a block twice, or to retain a free one", () => {
    const pool = new BlockPool(1);
    const [block] = pool.take(1)!;
    pool.release(block!);
    expect(() => pool.release(block!)).toThrow("released once too often");
    expect(() => pool.retain(block!)).toThrow("is free");
    expect(() => pool.publish(block!, "key")).toThrow("not held");
    pool.check();
  });

  test("keeps a published block findable after its last release", () => {
    const pool = new BlockPool(2);
    const [block] = pool.take(1)!;
    pool.publish(block!, "key");
    expect(pool.find("key")).toBe(block!);
    pool.release(block!);
    expect(gauges(pool)).toEqual({ total: 2, free: 1, cached: 1, held: 0, shared: 0 });
    expect(pool.find("key")).toBe(block!);
    pool.retain(block!);
    expect(gauges(pool)).toEqual({ total: 2, free: 1, cached: 0, held: 1, shared: 0 });
    pool.check();
  });

  test("takes free blocks first, then evicts the least recently used", () => {
    const pool = new BlockPool(4);
    const [a, b, c] = pool.take(3) as [number, number, number];
    for (const [block, key] of [
      [a, "a"],
      [b, "b"],
      [c, "c"],
    ] as const)
      pool.publish(block, key);
    for (const block of [a, b, c]) pool.release(block);
    // Used again, `a` is now the most recent.
    pool.retain(a);
    pool.release(a);
    const [free] = pool.take(1)!;
    expect([a, b, c]).not.toContain(free!);
    expect(pool.take(2)).toEqual([b, c]);
    expect([pool.find("a"), pool.find("b"), pool.find("c")]).toEqual([a, undefined, undefined]);
    pool.check();
  });

  test("keeps the first of two blocks with the same content", () => {
    const pool = new BlockPool(2);
    const [a, b] = pool.take(2) as [number, number];
    pool.publish(a, "key");
    pool.publish(b, "key");
    expect(pool.find("key")).toBe(a);
    pool.release(b);
    expect(gauges(pool).free).toBe(1);
    pool.check();
  });

  test("forgets a block that is unpublished, and all cached ones when cleared", () => {
    const pool = new BlockPool(3);
    const [a, b] = pool.take(2) as [number, number];
    pool.publish(a, "a");
    pool.publish(b, "b");
    pool.unpublish(a);
    pool.release(a);
    pool.release(b);
    expect(gauges(pool)).toEqual({ total: 3, free: 2, cached: 1, held: 0, shared: 0 });
    pool.clear();
    expect(pool.find("b")).toBeUndefined();
    expect(gauges(pool)).toEqual({ total: 3, free: 3, cached: 0, held: 0, shared: 0 });
    pool.check();
  });

  test("keeps its invariants through any order of calls", () => {
    let seed = 12345;
    const random = (n: number) => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return Math.floor((seed / 2 ** 32) * n);
    };
    const pool = new BlockPool(16);
    const held: number[] = [];
    for (let i = 0; i < 5000; i++) {
      const action = random(4);
      if (action === 0) held.push(...(pool.take(random(4)) ?? []));
      if (action === 1 && held.length) pool.release(held.splice(random(held.length), 1)[0]!);
      if (action === 2 && held.length) pool.publish(held[random(held.length)]!, `k${random(40)}`);
      if (action === 3) {
        const block = pool.find(`k${random(40)}`);
        if (block !== undefined) {
          pool.retain(block);
          held.push(block);
        }
      }
      pool.check();
    }
    for (const block of held) pool.release(block);
    pool.clear();
    expect(gauges(pool)).toEqual({ total: 16, free: 16, cached: 0, held: 0, shared: 0 });
  });
});
