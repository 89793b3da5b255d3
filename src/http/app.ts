// The Hono app: the middleware that every request passes (log, guard, keys), then the table of routes.
import { type Handler, Hono, type MiddlewareHandler } from "hono";
import { METHOD_NAME_ALL } from "hono/router";
import { ZodError } from "zod";
import type { Logger } from "../log.ts";
import type { Admission } from "../serve/admission.ts";
import { authenticate, limit, requireOwner } from "./frame/auth.ts";
import { isLoopback } from "./frame/bind.ts";
import { openAi } from "./frame/dialect.ts";
import type { HttpEnv } from "./frame/env.ts";
import { ApiError, apiErrorOf, draining, notFound } from "./frame/errors.ts";
import { guard } from "./frame/guard.ts";
import type { Metrics } from "./frame/metrics.ts";
import { refusalResponse } from "./frame/refusal.ts";
import { requestLog } from "./frame/request-log.ts";
import type { Route } from "./frame/route.ts";
import type { Serving } from "./frame/serving.ts";
import { routes } from "./routes.ts";

const methods = [...new Set(routes.map(({ method }) => method.toUpperCase()))];

export function makeApp(serving: Serving): Hono<HttpEnv> {
  const { settings, ring } = serving;
  const { host, allowedHosts, allowedOrigins } = settings;
  const app = newApp(serving);
  const hosts = allowedHosts.length > 0 ? [host, ...allowedHosts] : [];
  app.use(guard({ loopback: isLoopback(host), allowedHosts: hosts, allowedOrigins }));
  const openPaths = pathsOf(({ access }) => access === "open");
  app.use(authenticate(() => ring, openPaths));
  for (const route of routes) {
    // A parameter that ends a path also matches slashes, as in model names, unless a longer route continues the path.
    const isContinued = routes.some(({ path }) => path.startsWith(`${route.path}/`));
    const path = route.path
      .replace(/\{(\w+)\}$/, isContinued ? ":$1" : ":$1{.+}")
      .replace(/\{(\w+)\}/g, ":$1");
    app.on(route.method, [path], ...handlersOf(route, serving));
  }

  app.notFound((c) => {
    const allowed = methods.filter((method) =>
      // Counts only routes as matches; middleware also matches, but is registered for all methods.
      app.router
        .match(method, c.req.path)[0]
        .some(([[, { method }]]) => method !== METHOD_NAME_ALL),
    );
    if (allowed.length === 0) throw notFound("Unknown request URL: GET /docs lists the endpoints.");
    const headers = { Allow: allowed.join(", ") };
    throw new ApiError(405, "The method is not allowed here.", { headers });
  });
  return app;
}

/** Creates an app without routes, which logs requests and turns errors into responses. */
export function newApp({ log, metrics }: { log: Logger; metrics: Metrics }): Hono<HttpEnv> {
  const app = new Hono<HttpEnv>();
  const quietPaths = pathsOf(({ isQuiet }) => isQuiet === true);
  app.use(speakDialect);
  app.use(requestLog(log, quietPaths));
  app.use(async (c, next) => {
    await next();
    const { reason } = c.get("record");
    if (reason !== undefined) metrics.refused(c.get("caller")?.name, c.res.status, reason);
  });
  app.onError((error, c) => {
    const answer = apiErrorOf(error, routeAt(c.req.path)?.promptParam);
    const record = c.get("record");
    // The message of a ZodError spans several lines, so the response's message is logged instead.
    record.error ??= error instanceof ZodError ? answer.message : error.message;
    // Logs only unforeseen errors: an ApiError is expected, and is logged where it is thrown.
    const isUnforeseen = answer.status === 500 && !(error instanceof ApiError);
    if (isUnforeseen) log.error({ id: record.id, err: error }, "failed");
    return refusalResponse(c, answer);
  });
  return app;
}

/** Returns the middleware of a route, followed by its handler. */
export function handlersOf(route: Route, serving: Serving): Handler<HttpEnv>[] {
  const { access, isLimited, isClosedByDrain, priority = "HIGH", handler } = route;
  return [
    ...(access === "owner" ? [requireOwner] : []),
    ...(isLimited ? [limit] : []),
    ...(isClosedByDrain ? [rejectWhileDraining(serving.admission)] : []),
    handler(serving, priority),
  ];
}

/** Sets the dialect (the vendor's error format) before the route runs, so that errors of middleware use it too. */
const speakDialect: MiddlewareHandler<HttpEnv> = async (c, next) => {
  const { path } = c.req;
  const route = routes.find(
    (each) =>
      path === each.path ||
      path.startsWith(`${each.path}/`) ||
      (each.dialect?.prefix !== undefined && path.startsWith(each.dialect.prefix)),
  );
  const dialect = route?.dialect ?? openAi;
  c.set("dialect", dialect);
  await next();
  const { requestIdHeader } = dialect;
  if (requestIdHeader) c.res.headers.set(requestIdHeader, c.get("record").id);
};

function rejectWhileDraining(admission: Admission): MiddlewareHandler<HttpEnv> {
  return async (_, next) => {
    if (admission.phase === "draining") throw draining();
    await next();
  };
}

function routeAt(path: string): Route | undefined {
  return routes.find((route) => route.path === path);
}

function pathsOf(isWanted: (route: Route) => boolean): ReadonlySet<string> {
  return new Set(routes.filter(isWanted).map(({ path }) => path));
}
