// Requests to the hub: sends the token only to the hub, turns error responses into one line that names the fix, and
// distinguishes transient from permanent errors.
import { codeOf, HubError, quoted } from "./hub-error.ts";

export type Hub = {
  /** URL of the hub, without a trailing slash. */
  readonly endpoint: string;
  readonly token: string | undefined;
  readonly repo: string;
  readonly revision: string;
};

/** An error after which a retry may succeed: a broken connection or a busy hub. */
export class TransientError extends HubError {
  readonly retryAfterMs: number | undefined;

  constructor(message: string, retryAfterMs?: number) {
    super(message);
    this.name = "TransientError";
    this.retryAfterMs = retryAfterMs;
  }
}

export type RetryPolicy = {
  /** Maximum consecutive attempts without progress. */
  readonly attempts: number;
  /** Milliseconds before the second attempt; doubles with each further one. */
  readonly delayMs: number;
  /** Milliseconds without data after which a connection is given up. */
  readonly stallMs: number;
};

export const defaultRetryPolicy: RetryPolicy = { attempts: 6, delayMs: 500, stallMs: 30_000 };

const MAX_DELAY_MS = 30_000;
const MAX_REDIRECTS = 10;
const redirects: readonly number[] = [301, 302, 303, 307, 308];
const GO_ON = "then run the same command, which resumes the pull";

/** Returns a successful response, or throws. Follows redirects, but does not send the token to other hosts. */
export async function request(hub: Hub, url: string, init: RequestInit = {}): Promise<Response> {
  let [at, isHub] = [new URL(url), true];
  for (let hops = 0; hops <= MAX_REDIRECTS; hops++) {
    isHub &&= at.origin === new URL(hub.endpoint).origin;
    const headers = new Headers(init.headers);
    if (isHub && hub.token) headers.set("Authorization", `Bearer ${hub.token}`);
    const response = await fetch(at, { ...init, headers, redirect: "manual" }).catch(
      (error: unknown) => {
        throw broken(hub, error);
      },
    );
    if (response.ok) return response;
    await response.body?.cancel();
    if (!redirects.includes(response.status)) throw refusal(hub, response);
    at = redirected(hub, at, response);
  }
  throw new HubError(`${hub.endpoint} redirects more than ${MAX_REDIRECTS} times`);
}

/** Returns the target of a redirect; throws if it leads from https to http. */
function redirected(hub: Hub, from: URL, { headers }: Response): URL {
  const location = headers.get("Location") ?? "";
  const to = URL.canParse(location, from.href) ? new URL(location, from) : undefined;
  const allowed = from.protocol === "https:" ? ["https:"] : ["https:", "http:"];
  if (to && allowed.includes(to.protocol)) return to;
  const schemes = allowed.map((protocol) => protocol.slice(0, -1)).join(" or ");
  throw new HubError(
    `${hub.endpoint} redirects to ${quoted(location)}: expected a URL of ${schemes}`,
  );
}

/** Turns an error of the connection into one that is retried. */
export function broken(hub: Hub, error: unknown): TransientError {
  const name = error instanceof Error ? error.name : "";
  const why = name === "TimeoutError" ? "no response" : (codeOf(error) ?? String(error));
  return new TransientError(`the connection to ${hub.endpoint} failed (${why})`);
}

function refusal(hub: Hub, response: Response): HubError {
  const { endpoint, token, repo, revision } = hub;
  const { status, headers } = response;
  const code = headers.get("X-Error-Code");
  const retryAfterMs = Number(headers.get("Retry-After") ?? Number.NaN) * 1000;
  if (status === 429 || status === 408 || status >= 500) {
    return new TransientError(
      `${endpoint} returned ${status}`,
      Number.isFinite(retryAfterMs) ? retryAfterMs : undefined,
    );
  }
  const makeToken = `a token from ${endpoint}/settings/tokens`;
  if (code === "GatedRepo") {
    const then = token ? "with the account of your token" : `then set HF_TOKEN to ${makeToken}`;
    return new HubError(`${repo} is gated: accept its terms on ${endpoint}/${repo}, ${then}`);
  }
  if (code === "RevisionNotFound") return new HubError(`${repo} has no revision ${revision}`);
  if (code === "EntryNotFound")
    return new HubError(`${repo} has no ${new URL(response.url).pathname}`);
  if (status === 404 || code === "RepoNotFound") {
    const how = token ? "or your token has no access to it" : "or it is private and needs HF_TOKEN";
    return new HubError(`${endpoint} has no ${repo}, ${how}: check the name`);
  }
  if (status === 401) {
    return new HubError(
      token
        ? `${endpoint} rejects your token: set HF_TOKEN to ${makeToken}`
        : `${repo} is not public: set HF_TOKEN to ${makeToken} with access to it`,
    );
  }
  if (status === 403) {
    return new HubError(
      `your token has no access to ${repo}: set HF_TOKEN to ${makeToken} with access`,
    );
  }
  return new HubError(`${endpoint} returned ${status} for ${new URL(response.url).pathname}`);
}

export type RetryOptions = {
  readonly policy: RetryPolicy;
  readonly signal: AbortSignal;
  onRetry(error: TransientError, delayMs: number): void;
};

/** Calls the function until it succeeds or fails permanently. Progress resets the count of attempts. */
export async function retrying<T>(
  { policy, signal, onRetry }: RetryOptions,
  run: () => Promise<T>,
  progress: () => number = () => 0,
): Promise<T> {
  for (let failures = 0; ; ) {
    const before = progress();
    try {
      return await run();
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof TransientError)) throw error;
      failures = progress() > before ? 1 : failures + 1;
      if (failures >= policy.attempts) {
        throw new HubError(`${error.message}: check the network and HF_ENDPOINT, ${GO_ON}`);
      }
      const backoffMs = policy.delayMs * 2 ** (failures - 1) * (1 + Math.random() / 4);
      const delayMs = Math.min(error.retryAfterMs ?? backoffMs, MAX_DELAY_MS);
      onRetry(error, delayMs);
      await pause(delayMs, signal);
    }
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  const stop = () => resolve();
  signal.addEventListener("abort", stop);
  await promise;
  clearTimeout(timer);
  signal.removeEventListener("abort", stop);
  signal.throwIfAborted();
}
