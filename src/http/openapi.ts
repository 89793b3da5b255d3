// Builds the OpenAPI document from the table of routes. Fields and limits come from the zod schemas that parse the
// requests.
import type { Context } from "hono";
import { z } from "zod";
import { version } from "../../package.json";
import type { KeyRing } from "../keys/key-ring.ts";
import { openAi } from "./frame/dialect.ts";
import type { HttpEnv } from "./frame/env.ts";
import type { Route } from "./frame/route.ts";

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
  paths: Record<string, Partial<Record<Route["method"], Operation>>>;
  components: { schemas: Record<string, JsonSchema>; securitySchemes: Record<string, object> };
};

export type OpenApiOptions = { url?: string; needsKey?: boolean };

export function openApiDocument(
  routes: readonly Route[],
  { url = "http://127.0.0.1:8080", needsKey = true }: OpenApiOptions = {},
): OpenApiDocument {
  const paths: OpenApiDocument["paths"] = {};
  for (const route of routes) {
    paths[route.path] = { ...paths[route.path], [route.method]: operation(route, needsKey) };
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "mlx-serve",
      version,
      description:
        "Language models on MLX over the APIs of OpenAI, Anthropic and Ollama. A null parameter counts as absent. " +
        "Unsupported parameters are rejected, and unknown fields are ignored.",
    },
    servers: [{ url }],
    security: needsKey ? [{ bearer: [] }] : [],
    paths,
    components: {
      schemas: namedSchemas(routes),
      securitySchemes: needsKey ? { bearer: { type: "http", scheme: "bearer" } } : {},
    },
  };
}

/** Returns the server's URL as the client sees it (possibly a proxy's), and whether the server requires API keys. */
export function askedAt(c: Context<HttpEnv>, ring: KeyRing): Required<OpenApiOptions> {
  const scheme = c.req.header("x-forwarded-proto") === "https" ? "https" : "http";
  return { url: `${scheme}://${c.req.header("host")}`, needsKey: !ring.open };
}

function operation(route: Route, needsKey: boolean): Operation {
  const { method, path, request, example, errors = [], alsoStatus = [] } = route;
  const { requestType = "application/json" } = route;
  const isOpen = route.access === "open";
  const parameters = Array.from(path.matchAll(/\{(\w+)\}/g), ([, name]) => ({
    name: name!,
    in: "path" as const,
    required: true as const,
    schema: { type: "string" as const },
  }));
  const keyErrors = isOpen ? [] : needsKey ? [401, 403] : [403];
  const refusals = [...keyErrors, ...errors].sort((a, b) => a - b);
  return {
    operationId: operationId(method, path),
    summary: route.summary,
    tags: [route.tag],
    ...(parameters.length > 0 && { parameters }),
    ...(request && {
      requestBody: {
        required: true,
        content: { [requestType]: { schema: refTo(request), ...(example && { example }) } },
      },
    }),
    responses: Object.fromEntries([
      ...[200, ...alsoStatus].map((status) => [status, answer(route, status)]),
      ...refusals.map((status) => [status, refusal(route, status)]),
    ]),
    ...(isOpen && needsKey && { security: [] }),
  };
}

function answer(route: Route, status: number) {
  const { response, event, mediaType = "application/json" } = route;
  const content: Content = { [mediaType]: response ? { schema: refTo(response) } : {} };
  const { streamType } = route.dialect ?? openAi;
  if (event) content[streamType.split(";")[0]!] = { schema: eventSchema(route, event) };
  return { description: descriptions[status]!, content };
}

/**
 * Returns the schema of one event or line of a stream. A server-sent event is not JSON, so its schema describes its
 * fields, as OpenAPI 3.2's itemSchema does; its field `data` is a string that contains JSON.
 */
function eventSchema({ dialect = openAi }: Route, event: z.ZodType): JsonSchema {
  const json = { anyOf: [refTo(event), refTo(dialect.errorSchema)] };
  if (dialect.streamType === "application/x-ndjson") return json;
  const data = {
    type: "string" as const,
    contentMediaType: "application/json",
    contentSchema: json,
  };
  const named = { description: "The type of the event.", type: "string" as const };
  if (dialect.streamEnd === "") {
    return { type: "object", required: ["event", "data"], properties: { event: named, data } };
  }
  return {
    type: "object",
    required: ["data"],
    properties: {
      data: { description: "JSON, or `[DONE]` at the end.", anyOf: [data, { const: "[DONE]" }] },
    },
  };
}

function refusal({ dialect = openAi }: Route, status: number) {
  const content: Content = { "application/json": { schema: refTo(dialect.errorSchema) } };
  return { description: descriptions[status]!, content };
}

const descriptions: Readonly<Record<number, string>> = {
  200: "The response",
  400: "The request is invalid: `param` names the parameter",
  401: "No key, or an unknown key",
  403: "Not allowed",
  404: "The requested object does not exist",
  408: "The body arrived too slowly",
  409: "Conflict with the current state, such as a busy model",
  413: "The body is too large",
  415: "The body has the wrong media type or is compressed",
  429: "Too many requests: Retry-After says when to try again",
  500: "Internal error",
  502: "The hub did not return the requested files",
  503: "Loading, draining or down",
  504: "The request timeout has passed",
  507: "The disk is full",
};

/** Returns a route's id, such as postV1ChatCompletions for post /v1/chat/completions. */
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

function namedSchemas(routes: readonly Route[]): Record<string, JsonSchema> {
  const used = routes.flatMap(({ request, response, event, dialect = openAi }) => {
    return [request, response, event, dialect.errorSchema];
  });
  const registry = z.registry<{ id: string }>();
  for (const schema of new Set([...used, openAi.errorSchema])) {
    if (schema) registry.add(schema, { id: nameOf(schema) });
  }
  // Response schemas have no defaults or transforms, so zod's schema of their input describes their output too.
  const { schemas } = z.toJSONSchema(registry, { io: "input", uri: refUri });
  return Object.fromEntries(
    Object.entries(schemas).map(([name, { $schema, $id, ...schema }]) => [name, schema]),
  );
}
