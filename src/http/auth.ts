// Whose request it is, whether it may do this, and how much of it. Every path is asked for a key, known
// or not, but GET /health.
import type { Context, MiddlewareHandler } from "hono";
import type { KeyRing } from "../keys/key-ring.ts";
import { formatDuration, Lease, type Limited } from "../keys/limiter.ts";
import type { HttpEnv } from "./env.ts";
import {
  type ApiError,
  errorResponse,
  forbidden,
  tooManyRequests,
  unauthorized,
} from "./errors.ts";

const noKey = "A key is needed: send it as the header 'Authorization: Bearer <key>'.";
const wrongKey = "The key is not one that this server knows.";

/** Stands before all routes, so that the path it sees is the one that is routed. */
export function authenticate(ring: () => KeyRing): MiddlewareHandler<HttpEnv> {
  return async (c, next) => {
    const key = presentedKey(c);
    const caller = ring().find(key);
    if (caller) c.set("caller", caller);
    else if (!isHealth(c)) throw unauthorized(key === undefined ? noKey : wrongKey);
    await next();
  };
}

/** Lets only those through who may manage the server. */
export const requireOwner: MiddlewareHandler<HttpEnv> = async (c, next) => {
  if (!c.get("caller").owner) throw forbidden("This key may not manage the server.");
  await next();
};

/**
 * Lets the caller's limits decide, for the routes that compute. The lease ends when the handler is
 * done; one whose answer goes on as a stream must say `c.get("lease").endWith(over)` first.
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
    c.res = errorResponse(tooMany(lease));
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

/** OpenAI's clients send the first, Anthropic's and Azure's the others. */
function presentedKey(c: Context): string | undefined {
  const authorization = c.req.header("authorization");
  if (authorization === undefined) return c.req.header("x-api-key") ?? c.req.header("api-key");
  return /^Bearer +(\S+)$/i.exec(authorization)?.[1];
}

function isHealth(c: Context): boolean {
  return c.req.path === "/health" && ["GET", "HEAD"].includes(c.req.method);
}
