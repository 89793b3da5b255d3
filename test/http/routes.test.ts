// Access control: every route, every way to write its path, and every kind of wrong key.
import { describe, expect, test } from "bun:test";
import { AnthropicError } from "../../src/api/anthropic/messages.ts";
import { OllamaError } from "../../src/api/ollama/generate.ts";
import { routes } from "../../src/http/routes.ts";
import { hashOf } from "../../src/keys/key-file.ts";
import { expectRefusal } from "../support/fault-checks.ts";
import { keyEntry } from "../support/keys.ts";
import { exchange, requestText } from "../support/raw-http.ts";
import { startTestServer } from "../support/server.ts";
import { useTestServer } from "../support/use-server.ts";

const KEY = "sk-mlx-key-of-alice-ossifrage";
const server = useTestServer({ keys: { keys: [keyEntry("alice", KEY)] } });

type Headers = Record<string, string>;

const ask = (path: string, method = "GET", headers: Headers = {}) =>
  fetch(`${server.url}${path}`, {
    method,
    headers: { ...(method === "POST" && { "content-type": "application/json" }), ...headers },
    ...(method === "POST" && { body: "{}" }),
  });

/** The path as it is on the wire, without URL normalization. */
const askRaw = (path: string, headers: Headers = {}, method = "GET") =>
  exchange(
    server.port,
    requestText(path, { method, headers: { Connection: "close", ...headers } }),
  );

/** The method of each route, and a path that it serves. */
const endpoints = routes.map(({ method, path, access }) => ({
  method: method.toUpperCase(),
  path: path.replace("{id}", "default"),
  isOpen: access === "open",
  isOwned: access === "owner",
}));

const noKey = { status: 401, code: "invalid_api_key" };

/** The same, as the API of the route says it. */
async function expectNoKey(answer: Response, path: string): Promise<void> {
  if (path.startsWith("/api/")) {
    OllamaError.strict().parse(await answer.json());
    expect(answer.status).toBe(401);
    return;
  }
  if (!path.startsWith("/v1/messages")) {
    await expectRefusal(answer, noKey);
    return;
  }
  const body = AnthropicError.strict().parse(await answer.json());
  expect([answer.status, body.error.type]).toEqual([401, "authentication_error"]);
}

describe("the routes", () => {
  test("need a key, except /health, the documentation and the files of the console", async () => {
    const open = endpoints.filter(({ isOpen }) => isOpen).map(({ path }) => path);
    const paths = "/ /console.css /console.js /console.json /docs /health /openapi.json";
    expect(open.sort().join(" ")).toBe(paths);
    for (const { method, path, isOpen } of endpoints) {
      const answer = await ask(path, method);
      if (isOpen) expect(answer.status).toBe(200);
      else await expectNoKey(answer, path);
      const wrong = await ask(path, method, { authorization: "Bearer wrong" });
      if (isOpen) expect(wrong.status).toBe(200);
      else await expectNoKey(wrong, path);
    }
  });

  test("need a key for every other method, and so do paths without a route", async () => {
    const paths = endpoints.map(({ path }) => path);
    for (const path of [...paths, "/", "/v1", "/favicon.ico", "/admin"]) {
      for (const method of ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]) {
        const { status } = await askRaw(path, {}, method);
        expect([method, path, status]).toEqual([method, path, 401]);
      }
    }
  });

  test("name the method that they allow when they reject another one", async () => {
    const headers = { authorization: `Bearer ${KEY}` };
    for (const { path } of endpoints) {
      const answer = await ask(path, "PATCH", headers);
      const methods = endpoints.filter((other) => other.path === path).map(({ method }) => method);
      const allowed = answer.headers.get("allow")?.split(", ");
      expect([path, allowed?.toSorted()]).toEqual([path, methods.toSorted()]);
      if (/^\/(v1\/messages|api\/)/.test(path)) expect(answer.status).toBe(405);
      else await expectRefusal(answer, { status: 405 });
    }
    await expectRefusal(await ask("/v1", "GET", headers), { status: 404 });
  });

  test("accept a key, and those that manage the server only an owner's", async () => {
    const owned = endpoints.filter(({ isOwned }) => isOwned).map(({ path }) => path);
    expect(owned.sort()).toEqual([
      ...["/api/delete", "/api/pull", "/batches", "/batches/cancel", "/bench"],
      ...["/engine/events", "/keys", "/keys", "/keys/revoke", "/models", "/models/load"],
      ...["/models/plan", "/models/unload", "/ps", "/requests/cancel"],
    ]);
    for (const { method, path } of endpoints) {
      const { status } = await ask(path, method, { authorization: `Bearer ${KEY}` });
      if (owned.includes(path)) expect([path, status]).toEqual([path, 403]);
      // What says nothing loads the model.
      else if (/^\/api\/(chat|generate)$/.test(path)) expect([path, status]).toEqual([path, 200]);
      // There is no response of that name.
      else if (path.startsWith("/v1/responses/")) expect([path, status]).toEqual([path, 404]);
      // There is no file or batch of that name, and a file is uploaded as a form.
      else if (/^\/v1\/(files|batches)\//.test(path)) expect([path, status]).toEqual([path, 404]);
      else if (method === "POST" && path === "/v1/files") expect(status).toBe(415);
      else expect([path, status]).toEqual([path, method === "POST" ? 400 : 200]);
    }
  });
});

describe("a key", () => {
  test("that is wrong, nearly right, or one of several is rejected", async () => {
    const wrong = [
      "",
      " ",
      "null",
      "undefined",
      KEY.slice(0, -1),
      KEY.slice(1),
      `${KEY}x`,
      KEY.toUpperCase(),
      KEY.replace("a", "b"),
      `${KEY},${KEY}`,
      `${KEY}, ${KEY}`,
      `${KEY} ${KEY}`,
      `${KEY};x`,
      `"${KEY}"`,
      encodeURIComponent(`${KEY}/`),
      hashOf(KEY).toString("hex"),
      "x".repeat(10_000),
    ];
    for (const key of wrong) {
      for (const headers of [
        { authorization: `Bearer ${key}` },
        { authorization: key },
        { "x-api-key": key },
        { "api-key": key },
      ] as Headers[]) {
        await expectRefusal(await ask("/v1/models", "GET", headers), noKey);
      }
    }
    for (const authorization of [KEY, `Basic ${KEY}`, `Bearer: ${KEY}`, `Bearer${KEY}`, "Bearer"]) {
      await expectRefusal(await ask("/v1/models", "GET", { authorization }), noKey);
    }
  });

  test("is read from a header, not from the URL, the body or a cookie", async () => {
    for (const path of [`/v1/models?api_key=${KEY}`, `/v1/models?key=${KEY}#${KEY}`]) {
      await expectRefusal(await ask(path), noKey);
    }
    await expectRefusal(await ask("/v1/models", "GET", { cookie: `key=${KEY}` }), noKey);
  });

  test("is needed however a path is written", async () => {
    const paths = [
      "//v1/models",
      "///v1/models",
      "/v1//models",
      "/v1/../v1/models",
      "/v1/../metrics",
      "/health/../v1/models",
      "/health/..%2fv1/models",
      "/health/%2e%2e/v1/models",
      "/v1%2fmodels",
      "/v1/models%00",
      "/v1/models;/health",
      "/v1/models?/health",
      "/v1/models#/health",
      "/\\v1\\models",
      "/./v1/models",
      "/V1/MODELS",
      "//health",
      "/health/",
      "/health/x",
      "/HEALTH",
      "/health%2f..%2fmetrics",
      "/health;/../metrics",
      "http://localhost/v1/models",
      "http://localhost//health",
    ];
    for (const path of paths) {
      const answer = await askRaw(path);
      expect([path, answer.status]).toEqual([path, 401]);
      await expectRefusal(answer, noKey);
    }
    expect((await askRaw("/health?x=/v1/models")).status).toBe(200);
  });

  test("is accepted in every header that clients use", async () => {
    for (const headers of [
      { Authorization: `Bearer ${KEY}` },
      { Authorization: `bearer  ${KEY}` },
      { "X-Api-Key": KEY },
      { "api-key": KEY },
    ] as Headers[]) {
      expect((await ask("/v1/models", "GET", headers)).status).toBe(200);
    }
  });
});

describe("the documentation", () => {
  test("can be read without a key, and speaks of the address it was asked at", async () => {
    const page = await ask("/docs", "GET", {});
    expect(page.status).toBe(200);
    const text = await page.text();
    expect(text).toContain(`curl ${server.url}/v1/chat/completions`);
    expect(text).toContain("Requests need an API key");
    expect(text).not.toContain(":8080");
    const document = await (await ask("/openapi.json", "GET", {})).json();
    expect(document).toMatchObject({ servers: [{ url: server.url }], security: [{ bearer: [] }] });
    const host = `localhost:${server.port}`;
    const proxied = await askRaw("/openapi.json", { Host: host, "X-Forwarded-Proto": "https" });
    expect(JSON.parse(proxied.body)).toMatchObject({ servers: [{ url: `https://${host}` }] });
    await using open = await startTestServer();
    expect(await (await fetch(`${open.url}/openapi.json`)).json()).toMatchObject({
      servers: [{ url: open.url }],
      security: [],
    });
  });
});

describe("a web page of another origin", () => {
  const key = { Authorization: `Bearer ${KEY}` };
  const grants = (headers: Iterable<[string, string]>) =>
    [...headers].filter(([name]) => name.startsWith("access-control"));

  test("that uses DNS rebinding is rejected by its Host, with or without a key", async () => {
    for (const host of ["evil.example", "evil.example:8080", "localhost.evil.example", "0.0.0.0"]) {
      for (const path of ["/v1/models", "/health", "/metrics", "/docs"]) {
        const answer = await askRaw(path, { Host: host, ...key });
        await expectRefusal(answer, { status: 403 });
        expect(grants(answer.headers)).toEqual([]);
      }
    }
  });

  test("is rejected by its Origin, without CORS headers", async () => {
    for (const origin of ["https://evil.example", "http://localhost:1", "null", "file://"]) {
      const answers = [
        await ask("/v1/models", "GET", { ...key, origin }),
        await ask("/v1/chat/completions", "POST", { ...key, origin }),
        await ask("/health", "GET", { origin }),
        await ask("/v1/models", "OPTIONS", { origin, "access-control-request-method": "GET" }),
      ];
      for (const answer of answers) {
        expect(grants(answer.headers)).toEqual([]);
        await expectRefusal(answer, { status: 403 });
      }
    }
    const own = await ask("/v1/models", "GET", { ...key, origin: server.url });
    expect([own.status, grants(own.headers)]).toEqual([200, []]);
  });
});
