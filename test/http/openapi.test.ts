import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { version } from "../../package.json";
import { docsPage } from "../../src/http/docs-page.ts";
import type { Route } from "../../src/http/frame/route.ts";
import { type JsonSchema, openApiDocument } from "../../src/http/openapi.ts";
import { routes } from "../../src/http/routes.ts";

const document = openApiDocument(routes);
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ method, path, operation })),
);

/** Every object in it. */
function* objectsIn(value: unknown): Generator<Record<string, unknown>> {
  if (typeof value !== "object" || value === null) return;
  if (!Array.isArray(value)) yield value as Record<string, unknown>;
  for (const each of Object.values(value)) yield* objectsIn(each);
}

function at(path: string): unknown {
  const keys = path.replace(/^#\//, "").split("/");
  return keys.reduce((value: unknown, key) => (value as Record<string, unknown>)?.[key], document);
}

describe("the OpenAPI document", () => {
  test("has every endpoint of the API", () => {
    expect(operations.map(({ method, path }) => `${method} ${path}`).sort()).toEqual([
      "delete /api/delete",
      "delete /v1/files/{id}",
      "delete /v1/responses/{id}",
      "get /",
      "get /api/ps",
      "get /api/tags",
      "get /api/version",
      "get /batches",
      "get /console.css",
      "get /console.js",
      "get /console.json",
      "get /docs",
      "get /engine/events",
      "get /health",
      "get /keys",
      "get /metrics",
      "get /models",
      "get /openapi.json",
      "get /ps",
      "get /v1/batches",
      "get /v1/batches/{id}",
      "get /v1/files",
      "get /v1/files/{id}",
      "get /v1/files/{id}/content",
      "get /v1/models",
      "get /v1/models/{id}",
      "get /v1/responses/{id}",
      "get /v1/responses/{id}/input_items",
      "post /api/chat",
      "post /api/embed",
      "post /api/embeddings",
      "post /api/generate",
      "post /api/pull",
      "post /api/show",
      "post /batches/cancel",
      "post /bench",
      "post /detokenize",
      "post /keys",
      "post /keys/revoke",
      "post /models/load",
      "post /models/plan",
      "post /models/unload",
      "post /requests/cancel",
      "post /rerank",
      "post /score",
      "post /tokenize",
      "post /v1/batch/chat/completions",
      "post /v1/batch/completions",
      "post /v1/batches",
      "post /v1/batches/{id}/cancel",
      "post /v1/chat/completions",
      "post /v1/completions",
      "post /v1/embeddings",
      "post /v1/files",
      "post /v1/messages",
      "post /v1/messages/count_tokens",
      "post /v1/rerank",
      "post /v1/responses",
      "post /v1/score",
      "post /v2/rerank",
    ]);
  });

  test("says what it is", () => {
    expect(document.openapi).toStartWith("3.1.");
    expect(document.info).toMatchObject({ title: "mlx-serve", version });
    expect(openApiDocument([], { url: "http://host:1" }).servers).toEqual([
      { url: "http://host:1" },
    ]);
  });

  test("speaks of keys only where there are some", () => {
    const { security, components, paths } = openApiDocument(routes, { needsKey: false });
    expect([security, components.securitySchemes]).toEqual([[], {}]);
    const responses = Object.values(paths).flatMap((methods) =>
      Object.values(methods).flatMap((operation) => Object.keys(operation.responses)),
    );
    expect(responses).not.toContain("401");
    const page = String(docsPage(openApiDocument(routes, { needsKey: false })));
    expect(page).not.toMatch(/Authorization|need an API key/);
  });

  test("is plain JSON whose references all lead somewhere", () => {
    expect(JSON.parse(JSON.stringify(document))).toEqual(document);
    const refs = [...objectsIn(document)].flatMap(({ $ref }) => ($ref ? [String($ref)] : []));
    expect(refs.length).toBeGreaterThan(20);
    for (const ref of refs) {
      expect(ref).toStartWith("#/components/schemas/");
      expect(at(ref)).toBeDefined();
    }
    for (const name of Object.keys(document.components.schemas)) {
      expect(refs).toContain(`#/components/schemas/${name}`);
      expect(name).toMatch(/^[\w.-]+$/);
    }
  });

  test("declares the parameters of every path, and no others", () => {
    for (const { path, operation } of operations) {
      const declared = (operation.parameters ?? []).map(({ name }) => name);
      expect(declared).toEqual(Array.from(path.matchAll(/\{(\w+)\}/g), ([, name]) => name!));
    }
  });

  test("names each operation once", () => {
    const ids = operations.map(({ operation }) => operation.operationId);
    expect(new Set(ids).size).toBe(ids.length);
    for (const id of ids) expect(id).toMatch(/^[a-z]\w+$/);
  });

  test("describes every response, and errors as ErrorResponse or as the vendor's own", () => {
    for (const { path, operation } of operations) {
      const schema = path.startsWith("/v1/messages")
        ? "AnthropicError"
        : path.startsWith("/api/")
          ? "OllamaError"
          : "ErrorResponse";
      expect(operation.responses).toHaveProperty("200");
      for (const [status, { description, content }] of Object.entries(operation.responses)) {
        expect(description).toBeString();
        if (Number(status) < 400 || operation.operationId === "getHealth") continue;
        expect(content["application/json"]?.schema?.$ref).toEndWith(`/${schema}`);
      }
    }
  });

  test("requires a key everywhere except for /health, itself and the files of the console", () => {
    const open = operations.filter(({ operation }) => operation.security);
    expect(open.map(({ path }) => path)).toEqual([
      "/",
      "/console.js",
      "/console.css",
      "/console.json",
      "/health",
      "/openapi.json",
      "/docs",
    ]);
    const [scheme] = document.security.flatMap(Object.keys);
    expect(document.components.securitySchemes).toHaveProperty(scheme!);
  });

  test("describes every field of every request", () => {
    const silent = routes.flatMap(({ request }) => {
      const schema = request && z.toJSONSchema(request, { io: "input" });
      return [...objectsIn(schema)].flatMap(({ properties }) =>
        Object.entries((properties ?? {}) as Record<string, JsonSchema>)
          .filter(([, { description }]) => !description)
          .map(([name]) => name),
      );
    });
    expect(silent).toEqual([]);
  });

  test("has only examples that match its schemas", () => {
    for (const { path, request, example } of routes) {
      expect({ path, example: example !== undefined }).toEqual({ path, example: !!request });
      request?.parse(example);
    }
  });

  test("has required fields, defaults and ranges", () => {
    const { properties, required } = at("#/components/schemas/ChatRequest") as JsonSchema;
    expect(required).toEqual(["messages"]);
    expect(properties).toMatchObject({
      temperature: { type: "number", minimum: 0, maximum: 2 },
      model: { type: "string", default: "default" },
      stop: { anyOf: [{ type: "string" }, { type: "array", maxItems: 16 }] },
    });
    expect(at("#/components/schemas/CompletionRequest")).toMatchObject({ required: ["prompt"] });
  });

  test("rejects a schema without a name", () => {
    const route = { ...routes[0]!, response: z.object() };
    expect(() => openApiDocument([route])).toThrow("has no name");
  });

  test("describes an event of a stream by its data, not as the JSON in it", () => {
    const all = operations.flatMap(({ path, operation }) => {
      const stream = operation.responses["200"]?.content["text/event-stream"];
      return stream ? [{ path, schema: stream.schema }] : [];
    });
    const named: Record<string, [event: string, error: string]> = {
      "/v1/messages": ["MessagesEvent", "AnthropicError"],
      "/v1/responses": ["ResponseEvent", "ErrorResponse"],
      "/engine/events": ["EngineFeedEvent", "ErrorResponse"],
      "/bench": ["BenchEvent", "ErrorResponse"],
    };
    const streams = all.filter(({ path }) => !(path in named));
    expect(streams.map(({ path }) => path)).toEqual([
      "/v1/chat/completions",
      "/v1/completions",
      "/v1/batch/chat/completions",
      "/v1/batch/completions",
    ]);
    for (const { path, schema } of streams) {
      const chunk = path.includes("chat") ? "ChatChunk" : "CompletionChunk";
      const contentSchema = {
        anyOf: [chunk, "ErrorResponse"].map((name) => ({ $ref: `#/components/schemas/${name}` })),
      };
      expect(schema).toMatchObject({
        type: "object",
        required: ["data"],
        properties: {
          data: {
            anyOf: [
              { type: "string", contentMediaType: "application/json", contentSchema },
              { const: "[DONE]" },
            ],
          },
        },
      });
    }
    // Those of newer APIs have names, and nothing marks the end.
    for (const [path, names] of Object.entries(named)) {
      const anyOf = names.map((name) => ({ $ref: `#/components/schemas/${name}` }));
      expect(all.find((each) => each.path === path)?.schema).toMatchObject({
        required: ["event", "data"],
        properties: { event: { type: "string" }, data: { contentSchema: { anyOf } } },
      });
    }
  });
});

describe("the web page of the API", () => {
  const page = String(docsPage(document));

  test("shows every route with its fields and a call", () => {
    for (const { path, operation } of operations) {
      expect(page).toContain(`id="${operation.operationId}"`);
      expect(page).toContain(`curl http://127.0.0.1:8080${path.replace("{id}", "default")}`);
    }
    for (const field of [
      "temperature",
      "messages[].content",
      "usage.prompt_tokens_details",
      "data.choices[].delta.content",
    ]) {
      expect(page).toContain(`<td>${field}`);
    }
    expect(page).toContain("number, 0 to 2");
  });

  test("loads nothing, and has no script", () => {
    expect(page).not.toMatch(/<(script|link|img|iframe|object|embed|form|base)\b/i);
    expect(page).not.toMatch(/\b(src|srcset|action|on\w+)=/i);
    expect(page).not.toMatch(/@import|url\(/i);
    for (const [, href] of page.matchAll(/href="([^"]*)"/g)) expect(href).toStartWith("#");
  });

  test("escapes its input", () => {
    const evil = `<script>alert("1")</script>&'`;
    const request = z
      .object({ [evil]: z.enum([evil]).describe(`${evil} \`${evil}\``) })
      .meta({ id: "Evil" });
    const route: Route = {
      ...routes[0]!,
      path: `/${evil}`,
      summary: evil,
      request,
      example: { [evil]: evil },
    };
    const shown = String(docsPage(openApiDocument([route], { url: `http://${evil}` })));
    expect(shown).not.toContain("<script");
    expect(shown).toContain("&lt;script&gt;");
  });

  test("has all its tags closed", () => {
    const open: string[] = [];
    for (const [, close, tag] of page.matchAll(/<(\/?)([a-z]\w*)\b[^>]*>/g)) {
      if (tag === "meta") continue;
      if (close) expect(open.pop()).toBe(tag);
      else open.push(tag!);
    }
    expect(open).toEqual([]);
  });
});
