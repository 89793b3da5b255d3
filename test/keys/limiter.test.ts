import { beforeEach, describe, expect, test } from "bun:test";
import { formatDuration, KeyLimiter, Lease, type Limits } from "../../src/keys/limiter.ts";

let nowMs: number;
beforeEach(() => {
  nowMs = 5000;
});

const limiterOf = (limits: Limits) => new KeyLimiter(limits, () => nowMs);

/** A request that must be let in. */
function admitted(limiter: KeyLimiter): Lease {
  const lease = limiter.begin();
  if (!(lease instanceof Lease)) throw new Error(`limited by ${lease.reason}`);
  return lease;
}

describe("requests a minute", () => {
  test("may come at once, and then as the bucket refills", () => {
    const limiter = limiterOf({ requestsPerMinute: 3 });
    for (let i = 0; i < 3; i++) admitted(limiter).end();
    expect(limiter.begin()).toEqual({ reason: "requests", limit: 3, retryAfterMs: 20_000 });
    nowMs += 5000;
    expect(limiter.begin()).toMatchObject({ retryAfterMs: 15_000 });
    nowMs += 14_999;
    expect(limiter.begin()).toMatchObject({ retryAfterMs: 1 });
    nowMs += 1;
    admitted(limiter);
    expect(limiter.begin()).toMatchObject({ retryAfterMs: 20_000 });
  });

  test("are not saved up beyond one minute", () => {
    const limiter = limiterOf({ requestsPerMinute: 2 });
    nowMs += 3_600_000;
    for (let i = 0; i < 2; i++) admitted(limiter);
    expect(limiter.begin()).toMatchObject({ reason: "requests" });
  });
});

describe("tokens a minute", () => {
  test("are charged as they are used, and may be overdrawn by what is under way", () => {
    const limiter = limiterOf({ tokensPerMinute: 600 });
    const lease = admitted(limiter);
    lease.use(599);
    admitted(limiter);
    lease.use(101);
    expect(limiter.begin()).toEqual({ reason: "tokens", limit: 600, retryAfterMs: 10_100 });
    nowMs += 10_099;
    expect(limiter.begin()).toMatchObject({ reason: "tokens" });
    nowMs += 1;
    admitted(limiter);
  });

  test("that are used late are not paid for by the time before", () => {
    const limiter = limiterOf({ tokensPerMinute: 600 });
    const lease = admitted(limiter);
    nowMs += 60_000;
    lease.use(600);
    expect(limiter.begin()).toMatchObject({ reason: "tokens", retryAfterMs: 100 });
  });
});

describe("requests at once", () => {
  test("are as many as the limit", () => {
    const limiter = limiterOf({ concurrent: 2 });
    const [first] = [admitted(limiter), admitted(limiter)];
    expect(limiter.begin()).toEqual({ reason: "concurrent", limit: 2, retryAfterMs: 1000 });
    first.end();
    admitted(limiter);
    expect(limiter.begin()).toMatchObject({ reason: "concurrent" });
  });

  test("end once, however often that is said", () => {
    const limiter = limiterOf({ concurrent: 1 });
    const lease = admitted(limiter);
    lease.end();
    lease.end();
    expect(limiter.active).toBe(0);
    admitted(limiter);
    lease.end();
    expect(limiter.active).toBe(1);
  });

  test("end with what they are held for, also where that fails", async () => {
    const limiter = limiterOf({});
    for (const settle of ["resolve", "reject"] as const) {
      const over = Promise.withResolvers<void>();
      const lease = admitted(limiter);
      expect(lease.held).toBe(false);
      lease.endWith(over.promise);
      expect([lease.held, limiter.active]).toEqual([true, 1]);
      over[settle]();
      await Promise.allSettled([over.promise]);
      expect(limiter.active).toBe(0);
    }
  });
});

test("a refused request uses nothing", () => {
  const limiter = limiterOf({ requestsPerMinute: 2, concurrent: 1 });
  const lease = admitted(limiter);
  for (let i = 0; i < 5; i++) expect(limiter.begin()).toMatchObject({ reason: "concurrent" });
  lease.end();
  admitted(limiter);
});

test("of several reasons the one that lasts longest is told", () => {
  const limiter = limiterOf({ requestsPerMinute: 60, tokensPerMinute: 60, concurrent: 1 });
  admitted(limiter).use(70);
  expect(limiter.begin()).toEqual({ reason: "tokens", limit: 60, retryAfterMs: 11_000 });
});

test("no limits let everything in", () => {
  const limiter = limiterOf({});
  for (let i = 0; i < 1000; i++) admitted(limiter).use(1e9);
  expect(limiter.active).toBe(1000);
  expect(limiter.headers()).toEqual({});
});

test("new limits keep the usage and the running requests", () => {
  const limiter = limiterOf({ requestsPerMinute: 10, tokensPerMinute: 100 });
  const lease = admitted(limiter);
  lease.use(60);
  limiter.setLimits({ requestsPerMinute: 20, tokensPerMinute: 50, concurrent: 1 });
  expect(limiter.headers()).toMatchObject({
    "x-ratelimit-remaining-requests": "19",
    "x-ratelimit-remaining-tokens": "0",
  });
  expect(limiter.begin()).toMatchObject({ reason: "tokens", retryAfterMs: 13_200 });
  nowMs += 60_000;
  expect(limiter.begin()).toMatchObject({ reason: "concurrent" });
  lease.end();
  admitted(limiter);
});

describe("the headers", () => {
  test("say what is left, and when all of it is there again", () => {
    const limiter = limiterOf({ requestsPerMinute: 60, tokensPerMinute: 1000 });
    const lease = admitted(limiter);
    lease.use(100);
    nowMs += 250;
    expect(limiter.headers()).toEqual({
      "x-ratelimit-limit-requests": "60",
      "x-ratelimit-remaining-requests": "59",
      "x-ratelimit-reset-requests": "750ms",
      "x-ratelimit-limit-tokens": "1000",
      "x-ratelimit-remaining-tokens": "904",
      "x-ratelimit-reset-tokens": "5.75s",
    });
    lease.use(2000);
    expect(limiter.headers()).toMatchObject({
      "x-ratelimit-remaining-tokens": "0",
      "x-ratelimit-reset-tokens": "2m5.75s",
    });
  });

  test("are there for the limits that are set", () => {
    expect(Object.keys(limiterOf({ tokensPerMinute: 5, concurrent: 1 }).headers())).toEqual([
      "x-ratelimit-limit-tokens",
      "x-ratelimit-remaining-tokens",
      "x-ratelimit-reset-tokens",
    ]);
  });

  test("write durations as OpenAI does", () => {
    const durations = [0, 12, 999, 1000, 8640, 60_000, 90_500, 360_000, 3_600_000, 90_061_001];
    expect(durations.map(formatDuration)).toEqual([
      "0s",
      "12ms",
      "999ms",
      "1s",
      "8.64s",
      "1m0s",
      "1m30.5s",
      "6m0s",
      "1h0m0s",
      "25h1m1.001s",
    ]);
  });
});
