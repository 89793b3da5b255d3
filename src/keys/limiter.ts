// Rate limits of one key: requests per minute, tokens per minute, concurrent requests. The first two are
// token buckets that refill continuously. A request is admitted while the bucket is not empty, and usage is
// charged as it happens, so one request can overdraw its bucket and the next ones wait.

export type Limits = {
  requestsPerMinute?: number | undefined;
  tokensPerMinute?: number | undefined;
  concurrent?: number | undefined;
};

/** Milliseconds of a clock that never goes back. */
export type Clock = () => number;

export type Limited = {
  reason: "requests" | "tokens" | "concurrent";
  limit: number;
  retryAfterMs: number;
};

/** Retry-After for the concurrency limit: when a running request will end is unknown. */
const CONCURRENT_RETRY_MS = 1000;

export const rateLimitHeaders = ["requests", "tokens"].flatMap((kind) =>
  ["limit", "remaining", "reset"].map((field) => `x-ratelimit-${field}-${kind}`),
);

export class KeyLimiter {
  readonly #now: Clock;
  #limits: Limits = {};
  #requests: Bucket | undefined;
  #tokens: Bucket | undefined;
  #active = 0;

  constructor(limits: Limits, now: Clock) {
    this.#now = now;
    this.setLimits(limits);
  }

  /** Requests under way. */
  get active(): number {
    return this.#active;
  }

  get limits(): Limits {
    return this.#limits;
  }

  /** Requests that may be under way at once; undefined if there is no limit. */
  get concurrent(): number | undefined {
    return this.#limits.concurrent;
  }

  /** Keeps the usage so far. */
  setLimits(limits: Limits): void {
    this.#requests = resized(this.#requests, limits.requestsPerMinute, this.#now);
    this.#tokens = resized(this.#tokens, limits.tokensPerMinute, this.#now);
    this.#limits = limits;
  }

  /** Admits a request; a refused one is not charged. */
  begin(): Lease | Limited {
    const limited = this.#limited();
    if (limited) return limited;
    this.#requests?.take(1);
    this.#active += 1;
    return new Lease(
      (tokens) => this.#tokens?.take(tokens),
      () => {
        this.#active -= 1;
      },
    );
  }

  #limited(): Limited | undefined {
    const waits = this.#buckets().map(
      ([reason, bucket]): Limited => ({
        reason,
        limit: bucket.perMinute,
        retryAfterMs: bucket.msUntil(1),
      }),
    );
    const [longest] = waits.sort((a, b) => b.retryAfterMs - a.retryAfterMs);
    if (longest && longest.retryAfterMs > 0) return longest;
    const { concurrent } = this;
    if (concurrent === undefined || this.#active < concurrent) return undefined;
    return { reason: "concurrent", limit: concurrent, retryAfterMs: CONCURRENT_RETRY_MS };
  }

  /** As OpenAI sends them, for the limits that are set. */
  headers(): Record<string, string> {
    const entries = this.#buckets().flatMap(([kind, bucket]) => [
      [`x-ratelimit-limit-${kind}`, `${bucket.perMinute}`],
      [
        `x-ratelimit-remaining-${kind}`,
        `${Math.max(0, Math.floor(bucket.perMinute - bucket.used))}`,
      ],
      [`x-ratelimit-reset-${kind}`, formatDuration(bucket.msUntil(bucket.perMinute))],
    ]);
    return Object.fromEntries(entries);
  }

  #buckets(): (readonly ["requests" | "tokens", Bucket])[] {
    return [
      ...(this.#requests ? [["requests", this.#requests] as const] : []),
      ...(this.#tokens ? [["tokens", this.#tokens] as const] : []),
    ];
  }
}

/** An admitted request. It counts as running until it is ended; ending it twice has no effect. */
export class Lease {
  readonly #charge: (tokens: number) => void;
  readonly #release: () => void;
  #ended = false;
  #held = false;

  constructor(charge: (tokens: number) => void, release: () => void) {
    this.#charge = charge;
    this.#release = release;
  }

  /** Whether something else than the handler's return ends it. */
  get held(): boolean {
    return this.#held;
  }

  use(tokens: number): void {
    this.#charge(tokens);
  }

  /** For an answer that goes on after the handler's return: ends the lease when that is over. */
  endWith(over: Promise<unknown>): void {
    this.#held = true;
    const end = () => this.end();
    over.then(end, end);
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#release();
  }
}

/** A token bucket of one minute's worth. Its only state is the time at which it is full again. */
class Bucket {
  readonly perMinute: number;
  readonly #now: Clock;
  readonly #msEach: number;
  #fullAtMs = Number.NEGATIVE_INFINITY;

  constructor(perMinute: number, now: Clock) {
    this.perMinute = perMinute;
    this.#msEach = 60_000 / perMinute;
    this.#now = now;
  }

  /** More than it holds where it is overdrawn. */
  get used(): number {
    return this.#missingMs / this.#msEach;
  }

  take(amount: number): void {
    this.#fullAtMs = Math.max(this.#fullAtMs, this.#now()) + amount * this.#msEach;
  }

  msUntil(amount: number): number {
    return Math.max(0, Math.ceil(this.#missingMs - (this.perMinute - amount) * this.#msEach));
  }

  get #missingMs(): number {
    return Math.max(0, this.#fullAtMs - this.#now());
  }
}

function resized(
  bucket: Bucket | undefined,
  perMinute: number | undefined,
  now: Clock,
): Bucket | undefined {
  if (perMinute === undefined) return undefined;
  const next = new Bucket(perMinute, now);
  next.take(bucket?.used ?? 0);
  return next;
}

/** "12ms", "1.5s", "6m0s", "1h0m0s": as Go writes durations, and OpenAI with it. */
export function formatDuration(ms: number): string {
  if (ms > 0 && ms < 1000) return `${ms}ms`;
  const [hours, minutes] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60];
  const seconds = `${(ms % 60_000) / 1000}s`;
  if (hours > 0) return `${hours}h${minutes}m${seconds}`;
  return minutes > 0 ? `${minutes}m${seconds}` : seconds;
}
