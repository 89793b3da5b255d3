import { describe, expect, mock, spyOn, test } from "bun:test";
import * as crypto from "node:crypto";
import { hashOf, type KeyEntry } from "../../src/keys/key-file.ts";
import { KeyRing } from "../../src/keys/key-ring.ts";
import { Lease } from "../../src/keys/limiter.ts";
import { keyEntry } from "../support/keys.ts";

const fileOf = (...keys: KeyEntry[]) => ({ keys });

function begun(ring: KeyRing, key: string): Lease {
  const lease = ring.find(key)!.limiter.begin();
  if (!(lease instanceof Lease)) throw new Error(`limited by ${lease.reason}`);
  return lease;
}

describe("a ring of keys", () => {
  const ring = new KeyRing({
    plain: ["one", "two"],
    local: "inside",
    file: fileOf(
      keyEntry("alice", "a-key", { tier: "HIGH" }),
      keyEntry("bob", "b-key", { tier: "LOW" }),
    ),
  });

  test("knows whose a key is", () => {
    const known = ["one", "two", "inside", "a-key", "b-key"].map((key) => {
      const { name, tier, owner } = ring.find(key)!;
      return [name, tier, owner];
    });
    expect(known).toEqual([
      ["api-key-1", "HIGH", true],
      ["api-key-2", "HIGH", true],
      ["local", "HIGH", true],
      ["alice", "HIGH", false],
      ["bob", "LOW", false],
    ]);
  });

  test("knows a caller by its name, as long as its key is there", () => {
    expect(ring.named("alice")).toBe(ring.find("a-key")!);
    expect(ring.named("api-key-2")).toBe(ring.find("two")!);
    for (const name of ["anonymous", "a-key", "", "ALICE"])
      expect(ring.named(name)).toBeUndefined();
    const open = new KeyRing({ local: "inside" });
    expect(open.named("anonymous")).toBe(open.find(undefined)!);
    expect(open.named("local")).toBeUndefined();
    const changing = new KeyRing({ file: fileOf(keyEntry("carol", "c-key")) });
    expect(changing.named("carol")).toBeDefined();
    changing.reload(fileOf());
    expect(changing.named("carol")).toBeUndefined();
  });

  test("knows no other", () => {
    for (const key of [
      undefined,
      "",
      "on",
      "onE",
      "one ",
      "one,two",
      "alice",
      "\0",
      hashOf("one").toString("hex"),
      "x".repeat(100_000),
    ]) {
      expect(ring.find(key)).toBeUndefined();
    }
  });

  test("compares every key, whichever it is", () => {
    const compare = spyOn(crypto, "timingSafeEqual");
    try {
      for (const key of ["one", "inside", "a-key", "b-key", "none"]) {
        compare.mockClear();
        ring.find(key);
        expect(compare).toHaveBeenCalledTimes(5);
        for (const [held, presented] of compare.mock.calls) {
          expect([held.byteLength, presented.byteLength]).toEqual([32, 32]);
        }
      }
    } finally {
      mock.restore();
    }
  });
});

describe("without keys", () => {
  test("every client has the owner's rights, without limits", () => {
    const ring = new KeyRing({ local: "inside" });
    expect(ring.open).toBe(true);
    for (const key of [undefined, "", "inside", "any"]) {
      const caller = ring.find(key)!;
      expect(caller).toMatchObject({ name: "anonymous", tier: "NORMAL", owner: true });
      expect(caller.limiter.headers()).toEqual({});
    }
  });

  test("a keys file closes the ring, also an empty one", () => {
    for (const ring of [new KeyRing({ plain: ["one"] }), new KeyRing({ file: fileOf() })]) {
      expect(ring.open).toBe(false);
      expect(ring.find(undefined)).toBeUndefined();
    }
    const ring = new KeyRing({});
    ring.reload(fileOf(keyEntry("alice", "a-key")));
    expect([ring.open, ring.find("any")]).toEqual([false, undefined]);
    expect(ring.find("a-key")?.name).toBe("alice");
    // Revoking its last key must not open the server.
    ring.reload(fileOf());
    expect([ring.open, ring.find("a-key")]).toEqual([false, undefined]);
    expect(ring.find(undefined)).toBeUndefined();
  });
});

describe("a reload", () => {
  const limits = { requests_per_minute: 2, concurrent: 1 };

  test("takes keys in and out, and leaves those of the command line", () => {
    const file = fileOf(keyEntry("a", "ka"));
    const ring = new KeyRing({ plain: ["one"], local: "inside", file });
    ring.reload(fileOf(keyEntry("b", "kb")));
    const names = ["one", "inside", "ka", "kb"].map((key) => ring.find(key)?.name);
    expect(names).toEqual(["api-key-1", "local", undefined, "b"]);
  });

  test("keeps what a name has used, and its requests under way", () => {
    const ring = new KeyRing({ file: fileOf(keyEntry("alice", "old", { limits })), now: () => 0 });
    const lease = begun(ring, "old");
    // Also with another key, tier and limit.
    const more = { tier: "LOW", limits: { ...limits, concurrent: 2 } } as const;
    ring.reload(fileOf(keyEntry("alice", "new", more)));
    expect(ring.find("old")).toBeUndefined();
    const { tier, limiter } = ring.find("new")!;
    expect([tier, limiter.active]).toEqual(["LOW", 1]);
    begun(ring, "new").end();
    expect(limiter.begin()).toMatchObject({ reason: "requests" });
    lease.end();
    expect(limiter.active).toBe(0);
  });

  test("lets the requests of a revoked key end", () => {
    const ring = new KeyRing({ file: fileOf(keyEntry("alice", "key", { limits })) });
    const { limiter } = ring.find("key")!;
    const lease = begun(ring, "key");
    ring.reload(fileOf());
    lease.use(5);
    lease.end();
    expect(limiter.active).toBe(0);
  });
});
