// A route: what the app, the OpenAPI document and the documentation need to know of an endpoint.
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
   * Parameters are in braces. One at the end may contain slashes, as names of models do: of two routes that
   * match, the first in the table is taken.
   */
  path: string;
  summary: string;
  tag: "Text" | "Ollama" | "Tokens" | "Files and batches" | "Models" | "Server";
  request?: z.ZodType;
  /** Of a request that is not JSON. */
  requestType?: "multipart/form-data";
  /** A request body that works. */
  example?: object;
  response?: z.ZodType;
  /** How errors and events are written; as OpenAI's if absent. */
  dialect?: Dialect;
  /** The data of one server-sent event, if the response can be streamed. */
  event?: z.ZodType;
  /** Of a response that is not JSON. */
  mediaType?: string;
  /** Error statuses besides 401 and 403, which every route that needs a key may return. */
  errors?: readonly number[];
  /** Statuses besides 200 that return `response`. */
  alsoStatus?: readonly number[];
  /** Who may call it: anybody, any key, or only the keys that manage the server. */
  access: "open" | "key" | "owner";
  /** Whether requests count against the key's limits. */
  isLimited?: boolean;
  /** The highest priority that requests get, whatever the key's tier; HIGH if absent. */
  priority?: Priority;
  /** The field that holds the prompt, for errors about it. */
  promptParam?: PromptParam;
  /** Whether the lines of a batch may be requests for it. */
  isForBatches?: boolean;
  /** Whether new requests are rejected while the server drains. Generations check this themselves. */
  isClosedByDrain?: boolean;
  /** Whether requests are logged at level debug only. */
  isQuiet?: boolean;
  handler(serving: Serving, priority: Priority): Handler<HttpEnv>;
};

// Error statuses that many routes have.
export const bodyErrors = [400, 408, 413, 415];
export const modelErrors = [...bodyErrors, 404, 500, 503];
export const tokenErrors = [...modelErrors, 429];
export const generationErrors = [...tokenErrors, 504];
