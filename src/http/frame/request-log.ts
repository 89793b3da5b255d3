// Logs one line per request: key, path, status, tokens and duration. The request's id comes from the client or is
// generated; it is returned in a header and is part of every log line about the request.
import type { MiddlewareHandler } from "hono";
import type { Logger } from "../../log.ts";
import type { HttpEnv } from "./env.ts";
import type { RequestRecord } from "./request-record.ts";

/** Maximum characters of a logged text. */
const MAX_TEXT = 1024;

/** Logs each request once it has ended; requests for `quietPaths` only at level debug. */
export function requestLog(
  log: Logger,
  quietPaths: ReadonlySet<string>,
): MiddlewareHandler<HttpEnv> {
  return async (c, next) => {
    const start = performance.now();
    const record: RequestRecord = { id: requestId(c.req.header("x-request-id")) };
    c.set("record", record);
    await next();
    c.res.headers.set("x-request-id", record.id);
    const { status } = c.res;
    const write = () => {
      const { over: _, id, ...fields } = record;
      const ms = round(performance.now() - start);
      const { method, path } = c.req;
      const key = c.get("caller")?.name;
      // Errors while draining are expected, so they are not logged as failures.
      const hasFailed = status >= 500 && record.reason !== "draining";
      const level = quietPaths.has(path) ? "debug" : hasFailed ? "error" : "info";
      const request = { id, key, method, path: cut(path), status, ...readable(fields), ms };
      log[level](request, "request");
    };
    if (record.over) record.over.then(write, write);
    else write();
  };
}

/** Returns the client's request id if it is safe in headers and logs; otherwise generates one. */
export function requestId(given: string | undefined): string {
  return given !== undefined && /^[\w.:-]{1,128}$/.test(given)
    ? given
    : `req-${crypto.randomUUID()}`;
}

/** Rounds numbers and truncates texts; objects such as prompts are logged whole. */
function readable(fields: object): object {
  return Object.fromEntries(
    Object.entries(fields).map(([key, value]) => [
      key,
      typeof value === "number" ? round(value) : typeof value === "string" ? cut(value) : value,
    ]),
  );
}

/** Truncates client text, which may be as long as its headers or body. */
function cut(text: string): string {
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}...` : text;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
