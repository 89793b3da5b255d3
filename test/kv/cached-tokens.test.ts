import { expect, test } from "bun:test";
import { CachedTokens } from "../../src/kv/cached-tokens.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { range, setUpScheduler } from "../support/scheduler.ts";

const all = () => true;

test("the most similar of the cached blocks tells where a prompt parts", () => {
  const cached = new CachedTokens(10);
  cached.add("root", "a", Uint32Array.of(1, 2, 3, 4));
  cached.add("root", "b", Uint32Array.of(1, 2, 9, 9));
  cached.add("a", "c", Uint32Array.of(1, 2, 7, 7));
  const tokens = Uint32Array.of(1, 2, 3, 8);
  expect(cached.nearest("root", tokens, all)).toEqual({ common: 3, next: 4 });
  expect(cached.nearest("root", tokens, (key) => key !== "a")).toEqual({ common: 2, next: 9 });
  expect(cached.nearest("root", tokens, () => false)).toEqual({ common: 0, next: undefined });
  expect(cached.nearest("elsewhere", tokens, all)).toEqual({ common: 0, next: undefined });
});

test("what is no longer cached is forgotten when there is too much", () => {
  const cached = new CachedTokens(2);
  for (const key of ["a", "b", "c", "d", "e"]) cached.add("root", key, Uint32Array.of(1, 2));
  cached.sweep((key) => key === "b");
  expect(cached.nearest("root", Uint32Array.of(1, 5), all)).toEqual({ common: 1, next: 2 });
  cached.sweep(() => false);
  cached.add("root", "f", Uint32Array.of(7));
  expect(cached.nearest("root", Uint32Array.of(7), all)).toEqual({ common: 1, next: undefined });
});

const setUp = (layout: object) => {
  const parts = setUpScheduler({ layout: { groups: [{ blocks: 60 }], ...layout } });
  const missOf = (prompt: number[]): Sequence["miss"] => {
    const sequence = parts.one({ prompt, maxTokens: 1 });
    parts.run();
    return sequence.miss;
  };
  return missOf;
};

test("a sequence knows at which token it parted from the nearest cached prefix", () => {
  const missOf = setUp({ explains: true });
  expect(missOf(range(200))).toEqual({ at: 0, token: 0, cached: undefined, resumed: 0 });
  const other = range(200).with(100, 999);
  expect(missOf(other)).toEqual({ at: 100, token: 999, cached: 100, resumed: 96 });
  // The whole of it is cached, but for the block that its last token is in.
  expect(missOf(range(200))).toBeUndefined();
  const longer = [...range(200), ...range(40, 500)];
  expect(missOf(longer)).toMatchObject({ at: 192, cached: undefined, resumed: 192 });
});

test("where a snapshot is missing, it resumes before that", () => {
  const missOf = setUp({ explains: true, slots: 8 });
  missOf(range(200));
  const other = range(200).with(100, 999);
  expect(missOf(other)).toEqual({ at: 100, token: 999, cached: 100, resumed: 0 });
  expect(missOf(range(200).with(100, 998))).toMatchObject({ at: 100, resumed: 96 });
});

test("nothing is remembered unless it is to be explained", () => {
  const missOf = setUp({});
  missOf(range(200));
  expect(missOf(range(200).with(100, 999))).toBeUndefined();
});
