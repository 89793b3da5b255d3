// The routes, and what every request passes on its way to one: the log, the guards, the keys.
import { Hono, type MiddlewareHandler } from "hono";
import { loadModel, ps, unloadModel } from "./admin.ts";
import { authenticate, limit, requireOwner } from "./auth.ts";
import { chat } from "./chat.ts";
import { completions } from "./completions.ts";
import { docsPage } from "./docs-page.ts";
import { embeddings } from "./embeddings.ts";
import type { HttpEnv } from "./env.ts";
import { ApiError, apiErrorOf, draining, notFound } from "./errors.ts";
import { guard, isLoopback } from "./guard.ts";
import { health } from "./health.ts";
import { getModel, listModels } from "./models.ts";
import { apiRoutes, openApiDocument } from "./openapi.ts";
import { requestLog } from "./request-log.ts";
import type { Serving } from "./serving.ts";
import { detokenize, tokenize } from "./tokenize.ts";

export function makeApp(serving: Serving): Hono<HttpEnv> {
  const { settings, ring, metrics, log } = serving;
  const { host, allowedHosts, allowedOrigins } = settings;
  const app = new Hono<HttpEnv>();
  app.use(requestLog(log));
  const hosts = allowedHosts.length > 0 ? [host, ...allowedHosts] : [];
  app.use(guard({ loopback: isLoopback(host), allowedHosts: hosts, allowedOrigins }));
  app.use(authenticate(() => ring));

  app.post("/v1/chat/completions", limit, chat(serving, "HIGH"));
  app.post("/v1/completions", limit, completions(serving, "HIGH"));
  app.post("/v1/batch/chat/completions", limit, chat(serving, "LOW"));
  app.post("/v1/batch/completions", limit, completions(serving, "LOW"));
  app.post("/v1/embeddings", limit, embeddings(serving));
  app.get("/v1/models", listModels(serving));
  app.get("/v1/models/:id{.+}", getModel(serving));
  app.post("/tokenize", limit, whileOpen(serving), tokenize(serving));
  app.post("/detokenize", limit, whileOpen(serving), detokenize(serving));
  app.get("/health", health(serving));
  app.get("/metrics", async (c) =>
    c.body(await metrics.text(), 200, { "Content-Type": metrics.contentType }),
  );
  app.post("/models/load", requireOwner, whileOpen(serving), loadModel(serving));
  app.post("/models/unload", requireOwner, unloadModel(serving));
  app.get("/ps", requireOwner, ps(serving));
  const document = openApiDocument(apiRoutes);
  app.get("/openapi.json", (c) => c.json(document));
  app.get("/docs", (c) =>
    c.html(docsPage(document), 200, {
      "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    }),
  );

  app.notFound((c) => {
    const known = apiRoutes.some(({ path }) => path === c.req.path);
    const error = known
      ? new ApiError(405, "The method is not allowed here.")
      : notFound("Unknown request URL: GET /docs lists what there is.");
    return c.json(error.body, error.status as 404);
  });
  app.onError((error, c) => {
    const answer = apiErrorOf(error, promptParam(c.req.path));
    const record = c.get("record");
    record.error ??= error.message;
    if (answer.status === 500) log.error({ id: record.id, err: error }, "failed");
    return c.json(answer.body, answer.status as 400, answer.headers);
  });
  return app;
}

/** Generations ask this themselves; other work is turned away here while the server ends. */
function whileOpen({ admission }: Serving): MiddlewareHandler<HttpEnv> {
  return async (_, next) => {
    if (admission.phase === "draining") throw draining();
    await next();
  };
}

function promptParam(path: string) {
  if (path.endsWith("/chat/completions")) return "messages";
  return path === "/v1/embeddings" ? "input" : "prompt";
}
