// Authenticates requests and enforces the key's permissions and limits. Except for the open routes, every path
// requires a key, even a path that does not exist.
import type { Context, MiddlewareHandler } from "hono";
import type { KeyRing } from "../../keys/key-ring.ts";
import { formatDuration, Lease, type Limited } from "../../keys/limiter.ts";
import type { HttpEnv } from "./env.ts";
import { type ApiError, forbidden, tooManyRequests, unauthorized } from "./errors.ts";
import { refusalResponse } from "./refusal.ts";

const noKey = "A key is needed: send it as the header 'Authorization: Bearer <key>'.";
const wrongKey = "The server does not know this key.";

/** Requires a valid API key on all paths except `openPaths`. Runs before all routes. */
export function authenticate(
  ring: () => KeyRing,
  openPaths: ReadonlySet<string>,
): MiddlewareHandler<HttpEnv> {
  return async (c, next) => {
    const key = presentedKey(c);
    const caller = ring().find(key);
    const isOpen = openPaths.has(c.req.path) && ["GET", "HEAD"].includes(c.req.method);
    if (caller) c.set("caller", caller);
    else if (!isOpen) throw unauthorized(key === undefined ? noKey : wrongKey);
    await next();
  };
}

/** Rejects requests whose key may not manage the server. */
export const requireOwner: MiddlewareHandler<HttpEnv> = async (c, next) => {
  if (!c.get("caller").owner) throw forbidden("This key may not manage the server.");
  await next();
};

/**
 * Counts the request against its key's limits, by a lease that ends when the handler returns. A handler whose
 * response continues as a stream must call `c.get("lease")?.endWith(over)` before it returns.
 */
export const limit: MiddlewareHandler<HttpEnv> = async (c, next) => {
  const { limiter } = c.get("caller");
  const lease = limiter.begin();
  if (lease instanceof Lease) {
    c.set("lease", lease);
    try {
      await next();
    } finally {
      if (!lease.held) lease.end();
    }
  } else {
    c.res = refusalResponse(c, tooMany(lease));
  }
  for (const [name, value] of Object.entries(limiter.headers())) c.res.headers.set(name, value);
};

function tooMany({ reason, limit, retryAfterMs }: Limited): ApiError {
  const what = reason === "concurrent" ? "requests at once" : `${reason} per minute`;
  return tooManyRequests(
    retryAfterMs / 1000,
    `Rate limit reached for ${what}: limit ${limit}. Please try again in ${formatDuration(retryAfterMs)}.`,
    { type: reason === "tokens" ? "tokens" : "requests" },
  );
}

/** Returns the API key: OpenAI's clients send it as Authorization, Anthropic's and Azure's in the other headers. */
export function presentedKey(c: Context): string | undefined {
  const authorization = c.req.header("authorization");
  if (authorization === undefined) return c.req.header("x-api-key") ?? c.req.header("api-key");
  return /^Bearer +(\S+)$/i.exec(authorization)?.[1];
}
