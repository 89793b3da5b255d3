// Rejects requests of foreign web pages. A page opened in the user's browser can send requests to this machine, under
// any name whose DNS its author controls (DNS rebinding). The Host and Origin headers expose such requests, regardless
// of keys.
import type { Context, MiddlewareHandler } from "hono";
import { rateLimitHeaders } from "../../keys/limiter.ts";
import { isLoopback } from "./bind.ts";
import type { HttpEnv } from "./env.ts";
import { forbidden } from "./errors.ts";
import { PREFIX_HEADER } from "./prefix-hash.ts";
import { refusalResponse } from "./refusal.ts";

export type GuardOptions = {
  /** Whether the server listens only on loopback addresses. */
  loopback: boolean;
  /** Allowed Host names, with or without a port; "*" allows any. */
  allowedHosts: readonly string[];
  /** Origins of web pages that may call the server; "*" allows any. */
  allowedOrigins: readonly string[];
};

const exposedHeaders = ["x-request-id", PREFIX_HEADER, "retry-after", ...rateLimitHeaders].join(
  ", ",
);

export function guard(options: GuardOptions): MiddlewareHandler<HttpEnv> {
  return async (c, next) => {
    const problem = hostProblem(c, options) ?? originProblem(c, options);
    const granted = problem === undefined ? foreignOrigin(c) : undefined;
    if (problem !== undefined) c.res = refusalResponse(c, forbidden(problem));
    else if (granted !== undefined && isPreflight(c)) c.res = preflight(c);
    else await next();
    c.res.headers.set("X-Content-Type-Options", "nosniff");
    if (granted === undefined) return;
    c.res.headers.set("Access-Control-Allow-Origin", granted);
    c.res.headers.set("Access-Control-Expose-Headers", exposedHeaders);
    c.res.headers.append("Vary", "Origin");
  };
}

function hostProblem(c: Context, { loopback, allowedHosts }: GuardOptions): string | undefined {
  const host = c.req.header("host")?.toLowerCase() ?? "";
  // The request's URL contains the Host header, so if the header is invalid, the path cannot be trusted either.
  const name = /^(\[[\da-f:.]+\]|[\w.-]+)(?::\d+)?$/.exec(host)?.[1];
  if (name === undefined) return "The Host header is missing or malformed.";
  if (!loopback && allowedHosts.length === 0) return undefined;
  const spellings = [host, name, name.replace(/^\[|\]$/g, "")];
  if (isLoopback(name) || spellings.some((each) => allows(allowedHosts, each))) return undefined;
  return "The Host header names a host that this server does not allow.";
}

function originProblem(c: Context, { allowedOrigins }: GuardOptions): string | undefined {
  const origin = foreignOrigin(c);
  if (origin !== undefined && !allows(allowedOrigins, origin.toLowerCase())) {
    return "The Origin header names an origin that this server does not allow.";
  }
  if (isEmbedded(c) && !allowedOrigins.includes("*")) {
    return "Web pages of other sites may not call this server.";
  }
  return undefined;
}

/** Returns the Origin header, unless it names this server. */
function foreignOrigin(c: Context): string | undefined {
  const [origin, host] = [c.req.header("origin"), c.req.header("host")?.toLowerCase()];
  const own = [`http://${host}`, `https://${host}`];
  return origin !== undefined && own.includes(origin.toLowerCase()) ? undefined : origin;
}

/** Returns whether another site's page embeds the response as an image, script or frame, rather than links to it. */
function isEmbedded(c: Context): boolean {
  return (
    c.req.header("origin") === undefined &&
    c.req.header("sec-fetch-site") === "cross-site" &&
    c.req.header("sec-fetch-dest") !== "document"
  );
}

function isPreflight(c: Context): boolean {
  return c.req.method === "OPTIONS" && c.req.header("access-control-request-method") !== undefined;
}

/** Answers a CORS preflight; allows all headers, since clients send too many custom ones (x-stainless-*) to list. */
function preflight(c: Context): Response {
  const asked = c.req.header("access-control-request-headers");
  return new Response(null, {
    status: 204,
    headers: {
      "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
      "Access-Control-Allow-Headers": asked ?? "Authorization, Content-Type, X-Request-Id",
      "Access-Control-Max-Age": "7200",
      Vary: "Access-Control-Request-Headers",
    },
  });
}

function allows(allowed: readonly string[], value: string): boolean {
  return allowed.some((each) => each === "*" || each.toLowerCase() === value);
}
