// Limits of one key: requests per minute, tokens per minute, concurrent requests. The first two are token buckets that
// refill continuously. A request is admitted while the bucket is not empty and charged as it runs, so it may overdraw
// the bucket, and the next requests wait.

export type Limits = {
  requestsPerMinute?: number | undefined;
  tokensPerMinute?: number | undefined;
  concurrent?: number | undefined;
};

/** A monotonic clock, in milliseconds. */
export type Clock = () => number;

export type Limited = {
  reason: "requests" | "tokens" | "concurrent";
  limit: number;
  retryAfterMs: number;
};

/** Retry-After for the limit of concurrent requests, since it is unknown when the running ones end. */
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

  /** Number of running requests. */
  get active(): number {
    return this.#active;
  }

  get limits(): Limits {
    return this.#limits;
  }

  /** Maximum concurrent requests; undefined if unlimited. */
  get concurrent(): number | undefined {
    return this.#limits.concurrent;
  }

  /** Changes the limits; the current usage stays. */
  setLimits(limits: Limits): void {
    this.#requests = resized(this.#requests, limits.requestsPerMinute, this.#now);
    this.#tokens = resized(this.#tokens, limits.tokensPerMinute, this.#now);
    this.#limits = limits;
  }

  /** Admits a request, or returns the limit that is reached; a refused request is not charged. */
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

  /** Returns OpenAI's rate-limit headers, for the limits that are set. */
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

/** An admitted request of a key. It counts as running until `end`, which is idempotent. */
export class Lease {
  readonly #charge: (tokens: number) => void;
  readonly #release: () => void;
  #ended = false;
  #held = false;

  constructor(charge: (tokens: number) => void, release: () => void) {
    this.#charge = charge;
    this.#release = release;
  }

  /** Whether the request continues after its handler has returned. */
  get held(): boolean {
    return this.#held;
  }

  use(tokens: number): void {
    this.#charge(tokens);
  }

  /** Ends the lease when this promise settles, instead of when the handler returns; for streamed responses. */
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

/** A token bucket that holds one minute's worth. Its only state is the time at which it is full again. */
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

  /** Requests or tokens used from the bucket; exceeds the capacity if the bucket is overdrawn. */
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

/** Formats a duration as OpenAI does: "12ms", "1.5s", "6m0s", "1h0m0s". */
export function formatDuration(ms: number): string {
  if (ms > 0 && ms < 1000) return `${ms}ms`;
  const [hours, minutes] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60];
  const seconds = `${(ms % 60_000) / 1000}s`;
  if (hours > 0) return `${hours}h${minutes}m${seconds}`;
  return minutes > 0 ? `${minutes}m${seconds}` : seconds;
}
