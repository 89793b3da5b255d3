// A route: an endpoint as described to the app, the OpenAPI document and the documentation.
import type { Handler } from "hono";
import type { z } from "zod";
import type { Priority } from "../../engine/protocol.ts";
import type { Dialect } from "./dialect.ts";
import type { HttpEnv } from "./env.ts";
import type { PromptParam } from "./errors.ts";
import type { Serving } from "./serving.ts";

export type Route = {
  method: "get" | "post" | "delete";
  /**
   * URL path, with parameters in braces. A parameter at the end may contain slashes, as model names do; the first
   * matching route of the table wins.
   */
  path: string;
  summary: string;
  tag: "Text" | "Ollama" | "Tokens" | "Files and batches" | "Models" | "Server";
  request?: z.ZodType;
  /** Media type of a request that is not JSON. */
  requestType?: "multipart/form-data";
  /** Example of a request body, for the documentation. */
  example?: object;
  response?: z.ZodType;
  /** Format of errors and events; OpenAI's by default. */
  dialect?: Dialect;
  /** Schema of a server-sent event's data; set if the response can be streamed. */
  event?: z.ZodType;
  /** Media type of a response that is not JSON. */
  mediaType?: string;
  /** Error statuses in addition to 401 and 403, which every route that needs a key may return. */
  errors?: readonly number[];
  /** Success statuses in addition to 200, with the same response schema. */
  alsoStatus?: readonly number[];
  /** Access without a key, or only with a key that may manage the server. Default: with any key. */
  access?: "open" | "owner";
  /** Whether requests count against the key's limits. */
  isLimited?: boolean;
  /** Maximum priority of the route's requests, regardless of the key's tier. Default: HIGH. */
  priority?: Priority;
  /** The request field that holds the prompt, for error messages. */
  promptParam?: PromptParam;
  /** Whether batches may contain requests for this route. */
  isForBatches?: boolean;
  /** Whether the app rejects new requests while the server drains; generation handlers reject them themselves. */
  isClosedByDrain?: boolean;
  /** Whether requests of this route are logged only at debug level. */
  isQuiet?: boolean;
  handler(serving: Serving, priority: Priority): Handler<HttpEnv>;
};

// Error statuses shared by many routes.
export const bodyErrors = [400, 408, 413, 415];
export const modelErrors = [...bodyErrors, 404, 500, 503];
export const tokenErrors = [...modelErrors, 429];
export const generationErrors = [...tokenErrors, 504];
