// Answers the requests in batch files, one request per line. They pass the same handlers, checks, limits and errors
// as clients' requests, but have no socket and run at low priority.
import type { LineRequest } from "../batch/batch-run.ts";
import type { BatchesOptions } from "../batch/batches.ts";
import type { LineResponse } from "../batch/output.ts";
import { EncoderBusyError } from "../text/encoder/encoder.ts";
import { JsonTextError, parseJson } from "../text/encoder/json-text.ts";
import { handlersOf, newApp } from "./app.ts";
import type { HttpEnv } from "./frame/env.ts";
import { ApiError } from "./frame/errors.ts";
import { JsonStructure } from "./frame/json-structure.ts";
import type { Serving } from "./frame/serving.ts";
import { routes } from "./routes.ts";

/** Maximum lines per batch, as in OpenAI's API. */
const MAX_LINES = 50_000;
/** Maximum bytes of a batch line in addition to its request body. */
const MAX_ENVELOPE_BYTES = 4096;
/** Retry interval of batch lines whose API key no longer exists: a later configuration may contain the key again. */
const NO_KEY_RETRY_MS = 10_000;
/** Retry interval of a batch line while the encoder is busy. */
const BUSY_RETRY_MS = 1000;
/** HTTP statuses after which a batch line is retried; 529 is Anthropic's equivalent of 503. */
const busy = [429, 503, 529];

export function batchesOptions(serving: Serving, folder: string): BatchesOptions {
  const { settings, admission, log, encoder, ring, models } = serving;
  return {
    folder,
    endpoints: batchRoutes.map(({ path }) => path),
    maxLines: MAX_LINES,
    maxLineBytes: settings.maxBodySize + MAX_ENVELOPE_BYTES,
    async parse(bytes) {
      const structure = new JsonStructure();
      try {
        structure.check(bytes);
        if (!structure.isLong) return { value: parseJson(bytes) };
        const client = { key: "batches", signal: new AbortController().signal, charge() {} };
        // Passes a copy: the encoder detaches the buffer that it gets, but the caller reads these bytes again.
        return { value: await encoder.parse(bytes.slice(), client) };
      } catch (error) {
        if (error instanceof JsonTextError) return { problem: "The line is not valid JSON." };
        if (error instanceof ApiError) return { problem: error.message };
        if (error instanceof EncoderBusyError) return { retryMs: BUSY_RETRY_MS };
        throw error;
      }
    },
    places() {
      // Batches pause while another model waits for memory, since they would keep their own model loaded forever.
      if (models.lacksRoom) return 0;
      const maxBatch = settings.batching ? settings.maxBatchSize : 1;
      return Math.max(1, maxBatch - admission.others);
    },
    placesOf(owner) {
      const { concurrent = Number.POSITIVE_INFINITY } = ring.named(owner)?.limiter ?? {};
      // Leaves one of the key's concurrent requests to its other clients, unless the limit is one.
      return Math.max(1, concurrent - 1);
    },
    answer: lineAnswerer(serving),
    onError(batch, error) {
      const told =
        batch === undefined
          ? "expired files cannot be removed"
          : "a batch has failed and will be retried";
      log.error({ batch, err: error }, told);
    },
  };
}

const batchRoutes = routes.filter(({ isForBatches }) => isForBatches);

function lineAnswerer(serving: Serving): BatchesOptions["answer"] {
  const app = newApp(serving);
  const callers = new WeakMap<Request, HttpEnv["Variables"]["caller"]>();
  app.use(async (c, next) => {
    c.set("caller", callers.get(c.req.raw)!);
    c.set("isLine", true);
    await next();
  });
  for (const route of batchRoutes) {
    app.on(route.method, [route.path], ...handlersOf({ ...route, priority: "LOW" }, serving));
  }
  return async (line) => {
    const caller = serving.ring.named(line.owner);
    if (!caller) return { retryMs: NO_KEY_RETRY_MS };
    const request = requestOf(line);
    callers.set(request, caller);
    return await responseOf(await app.fetch(request));
  };
}

function requestOf({ endpoint, requestId, body, signal }: LineRequest): Request {
  return new Request(`http://batch${endpoint}`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "content-length": String(body.length),
      "x-request-id": requestId,
    },
    body,
    signal,
  });
}

async function responseOf(response: Response): Promise<LineResponse | { retryMs: number }> {
  const { status, headers } = response;
  const body = await response.text();
  if (!busy.includes(status)) return { status, body };
  return { retryMs: 1000 * Number(headers.get("retry-after") ?? 1) };
}
