// The API as a table, and the OpenAPI document that is made of it. Fields and their limits are those of the
// zod schemas which read the requests.
import { z } from "zod";
import { version } from "../../package.json";
import { LoadRequest, PsResponse, UnloadRequest, UnloadResponse } from "../api/admin.ts";
import { ChatChunk, ChatRequest, ChatResponse } from "../api/chat.ts";
import { CompletionChunk, CompletionRequest, CompletionResponse } from "../api/completions.ts";
import { EmbeddingRequest, EmbeddingResponse } from "../api/embeddings.ts";
import { ErrorResponse } from "../api/error.ts";
import { Health } from "../api/health.ts";
import { Model, ModelList } from "../api/models.ts";
import {
  DetokenizeRequest,
  DetokenizeResponse,
  TokenizeRequest,
  TokenizeResponse,
} from "../api/tokenize.ts";

export type ApiRoute = {
  method: "get" | "post";
  /** Parameters stand in braces. */
  path: string;
  summary: string;
  tag: string;
  request?: z.ZodType;
  /** A body that works. */
  example?: object;
  response?: z.ZodType;
  /** One event of an answer that is streamed. */
  stream?: z.ZodType;
  /** Of an answer that is not JSON. */
  mediaType?: string;
  /** Besides 401 and 403, which every guarded route may answer. */
  errors?: readonly number[];
  /** Statuses besides 200 whose body is the response's. */
  alsoStatus?: readonly number[];
  /** Needs no key. */
  open?: boolean;
};

const bodyErrors = [400, 413, 415];
const modelErrors = [...bodyErrors, 404, 500, 503];
const generationErrors = [...modelErrors, 429, 504];

const chat = {
  method: "post",
  tag: "Text",
  request: ChatRequest,
  response: ChatResponse,
  stream: ChatChunk,
  example: { messages: [{ role: "user", content: "What is the capital of France?" }] },
  errors: generationErrors,
} as const;

const completion = {
  method: "post",
  tag: "Text",
  request: CompletionRequest,
  response: CompletionResponse,
  stream: CompletionChunk,
  example: { prompt: "The capital of France is", max_tokens: 16 },
  errors: generationErrors,
} as const;

export const apiRoutes: readonly ApiRoute[] = [
  { ...chat, path: "/v1/chat/completions", summary: "The next message of a chat" },
  { ...completion, path: "/v1/completions", summary: "How a text goes on" },
  {
    ...chat,
    path: "/v1/batch/chat/completions",
    summary: "The same as /v1/chat/completions, at low priority",
  },
  {
    ...completion,
    path: "/v1/batch/completions",
    summary: "The same as /v1/completions, at low priority",
  },
  {
    method: "post",
    path: "/v1/embeddings",
    summary: "Texts as vectors, where the model is made for it",
    tag: "Text",
    request: EmbeddingRequest,
    response: EmbeddingResponse,
    example: { input: "The capital of France" },
    errors: generationErrors,
  },
  {
    method: "post",
    path: "/tokenize",
    summary: "The tokens of a text or a chat",
    tag: "Tokens",
    request: TokenizeRequest,
    response: TokenizeResponse,
    example: { prompt: "The capital of France" },
    errors: [...modelErrors, 429],
  },
  {
    method: "post",
    path: "/detokenize",
    summary: "The text of tokens",
    tag: "Tokens",
    request: DetokenizeRequest,
    response: DetokenizeResponse,
    example: { tokens: [504, 3575, 282] },
    errors: [...modelErrors, 429],
  },
  {
    method: "get",
    path: "/v1/models",
    summary: "The models that can be asked for",
    tag: "Models",
    response: ModelList,
  },
  {
    method: "get",
    path: "/v1/models/{id}",
    summary: "One model",
    tag: "Models",
    response: Model,
    errors: [404],
  },
  {
    method: "post",
    path: "/models/load",
    summary: "Load a model before it is asked for",
    tag: "Models",
    request: LoadRequest,
    response: Model,
    example: { model: "default" },
    errors: modelErrors,
  },
  {
    method: "post",
    path: "/models/unload",
    summary: "Drop a model and free its memory",
    tag: "Models",
    request: UnloadRequest,
    response: UnloadResponse,
    example: { model: "default" },
    errors: [...modelErrors, 409],
  },
  {
    method: "get",
    path: "/ps",
    summary: "Models, memory, and everyone who runs or waits",
    tag: "Server",
    response: PsResponse,
    errors: [503],
  },
  {
    method: "get",
    path: "/health",
    summary: "Whether requests can be answered",
    tag: "Server",
    response: Health,
    alsoStatus: [503],
    open: true,
  },
  {
    method: "get",
    path: "/metrics",
    summary: "Counters and histograms for Prometheus",
    tag: "Server",
    mediaType: "text/plain",
  },
  {
    method: "get",
    path: "/openapi.json",
    summary: "This API as an OpenAPI document",
    tag: "Server",
  },
  {
    method: "get",
    path: "/docs",
    summary: "This API as a page to read",
    tag: "Server",
    mediaType: "text/html",
  },
];

export type JsonSchema = z.core.JSONSchema.BaseSchema;

type Content = Record<string, { schema?: JsonSchema; example?: object }>;

export type Operation = {
  operationId: string;
  summary: string;
  tags: string[];
  parameters?: { name: string; in: "path"; required: true; schema: JsonSchema }[];
  requestBody?: { required: true; content: Content };
  responses: Record<string, { description: string; content: Content }>;
  security?: [];
};

export type OpenApiDocument = {
  openapi: string;
  info: { title: string; version: string; description: string };
  servers: { url: string }[];
  security: Record<string, string[]>[];
  paths: Record<string, Partial<Record<ApiRoute["method"], Operation>>>;
  components: {
    schemas: Record<string, JsonSchema>;
    securitySchemes: Record<string, object>;
  };
};

export function openApiDocument(
  routes: readonly ApiRoute[],
  server = "http://127.0.0.1:8080",
): OpenApiDocument {
  const paths: OpenApiDocument["paths"] = {};
  for (const route of routes) {
    paths[route.path] = { ...paths[route.path], [route.method]: operation(route) };
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "mlx-serve",
      version,
      description:
        "Language models on MLX over the OpenAI API. A parameter that is null is as good as absent. " +
        "What cannot be honoured is refused, and fields that nobody defines are ignored.",
    },
    servers: [{ url: server }],
    security: [{ bearer: [] }],
    paths,
    components: {
      schemas: namedSchemas(routes),
      securitySchemes: { bearer: { type: "http", scheme: "bearer" } },
    },
  };
}

function operation(route: ApiRoute): Operation {
  const { method, path, request, example, open, errors = [], alsoStatus = [] } = route;
  const parameters = Array.from(path.matchAll(/\{(\w+)\}/g), ([, name]) => ({
    name: name!,
    in: "path" as const,
    required: true as const,
    schema: { type: "string" as const },
  }));
  const refusals = [...(open ? [] : [401, 403]), ...errors].sort((a, b) => a - b);
  return {
    operationId: operationId(method, path),
    summary: route.summary,
    tags: [route.tag],
    ...(parameters.length > 0 && { parameters }),
    ...(request && {
      requestBody: {
        required: true,
        content: { "application/json": { schema: refTo(request), ...(example && { example }) } },
      },
    }),
    responses: Object.fromEntries([
      ...[200, ...alsoStatus].map((status) => [status, answer(route, status)]),
      ...refusals.map((status) => [status, refusal(status)]),
    ]),
    ...(open && { security: [] }),
  };
}

function answer({ response, stream, mediaType = "application/json" }: ApiRoute, status: number) {
  const content: Content = { [mediaType]: response ? { schema: refTo(response) } : {} };
  if (stream) content["text/event-stream"] = { schema: refTo(stream) };
  return { description: descriptions[status]!, content };
}

function refusal(status: number) {
  const content: Content = { "application/json": { schema: refTo(ErrorResponse) } };
  return { description: descriptions[status]!, content };
}

const descriptions: Readonly<Record<number, string>> = {
  200: "The answer",
  400: "Something in the request is wrong: `param` names it",
  401: "No key, or one that the server does not know",
  403: "Not allowed",
  404: "There is no such model",
  409: "The model is answering, or is not loaded",
  413: "The body is too large",
  415: "The body is not JSON",
  429: "Too many requests: Retry-After says when to come back",
  500: "The server has failed",
  503: "Loading, draining or down",
  504: "It took longer than the server gives a request",
};

/** postV1ChatCompletions of post /v1/chat/completions. */
function operationId(method: string, path: string): string {
  const words = path.match(/\w+/g) ?? [];
  return method + words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join("");
}

const refUri = (name: string) => `#/components/schemas/${name}`;

function refTo(schema: z.ZodType): JsonSchema {
  return { $ref: refUri(nameOf(schema)) };
}

function nameOf(schema: z.ZodType): string {
  const id = z.globalRegistry.get(schema)?.id;
  if (id === undefined) throw new Error("a schema of the API has no name");
  return id;
}

function namedSchemas(routes: readonly ApiRoute[]): Record<string, JsonSchema> {
  const used = routes.flatMap(({ request, response, stream }) => [request, response, stream]);
  const registry = z.registry<{ id: string }>();
  for (const schema of new Set([...used, ErrorResponse])) {
    if (schema) registry.add(schema, { id: nameOf(schema) });
  }
  // Answers have no defaults and nothing is made of them, so that one direction serves for both.
  const { schemas } = z.toJSONSchema(registry, { io: "input", uri: refUri });
  return Object.fromEntries(
    Object.entries(schemas).map(([name, { $schema, $id, ...schema }]) => [name, schema]),
  );
}
