import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { Hono } from "hono";
import { authenticate, limit, requireOwner } from "../../../src/http/frame/auth.ts";
import type { HttpEnv } from "../../../src/http/frame/env.ts";
import { errorResponse } from "../../../src/http/frame/errors.ts";
import { guard } from "../../../src/http/frame/guard.ts";
import { hashOf, type KeyEntry } from "../../../src/keys/key-file.ts";
import { KeyRing } from "../../../src/keys/key-ring.ts";
import { listen } from "../../support/http-service.ts";

let nowMs: number;
let ring: KeyRing;

function entry(name: string, limits: KeyEntry["limits"] = {}): KeyEntry {
  const sha256 = hashOf(`key-of-${name}`).toString("hex");
  return { name, sha256, tier: "LOW", limits, created: "2025-01-01T00:00:00.000Z" };
}

const useFile = (...keys: KeyEntry[]) => {
  ring = new KeyRing({ plain: ["secret"], file: { keys }, now: () => nowMs });
};

beforeEach(() => {
  nowMs = 0;
  useFile(entry("alice"));
});

/** Streams that are open, each ended by its function. */
const streams: (() => void)[] = [];

const app = new Hono<HttpEnv>()
  .use(guard({ loopback: true, allowedHosts: [], allowedOrigins: ["http://app.test"] }))
  .use(authenticate(() => ring, new Set(["/health"])))
  .get("/health", (c) => c.json({ caller: c.get("caller")?.name ?? "nobody" }))
  .post("/health", (c) => c.text("posted"))
  .get("/v1/models", (c) => c.json(c.get("caller").name))
  .post("/v1/unload", requireOwner, (c) => c.text("unloaded"))
  .post("/v1/whole", limit, async (c) => {
    c.get("lease")!.use(await c.req.json());
    return new Response("whole");
  })
  .post("/v1/fail", limit, () => {
    throw new Error("no");
  })
  .post("/v1/stream", limit, (c) => {
    const over = Promise.withResolvers<void>();
    streams.push(over.resolve);
    c.get("lease")!.endWith(over.promise);
    return new Response("stream");
  });
app.onError((error) => errorResponse(error));
app.notFound((c) => c.text("no such path", 404));

type Headers = Record<string, string>;

const ask = (path: string, headers: Headers = {}, method = "GET", body: string | null = null) =>
  Promise.resolve(
    app.request(`http://localhost${path}`, {
      method,
      body,
      headers: { Host: "localhost", ...headers },
    }),
  );
const bearer = (key: string) => ({ Authorization: `Bearer ${key}` });

async function expectRefusal(response: Response): Promise<void> {
  expect(response.status).toBe(401);
  expect(response.headers.get("WWW-Authenticate")).toBe("Bearer");
  expect(await response.json()).toEqual({
    error: {
      message: expect.any(String),
      type: "invalid_request_error",
      param: null,
      code: "invalid_api_key",
    },
  });
}

describe("a key", () => {
  test("is taken from the headers that clients send", async () => {
    for (const [headers, name] of [
      [bearer("secret"), "api-key-1"],
      [bearer("key-of-alice"), "alice"],
      [{ Authorization: "bearer  secret" }, "api-key-1"],
      [{ "x-api-key": "secret" }, "api-key-1"],
      [{ "api-key": "key-of-alice" }, "alice"],
    ] as const) {
      const response = await ask("/v1/models", headers);
      expect([response.status, await response.json()]).toEqual([200, name]);
    }
  });

  test("that is missing or wrong is rejected", async () => {
    for (const headers of [
      {},
      { Authorization: "" },
      { Authorization: "Bearer" },
      { Authorization: "Bearer " },
      { Authorization: "secret" },
      { Authorization: "Basic secret" },
      { Authorization: "Bearersecret" },
      { Authorization: "Bearer secret, Bearer secret" },
      { Authorization: "Bearer secret,secret" },
      { Authorization: "Bearer secret secret" },
      { Authorization: "Bearer Bearer secret" },
      bearer("secre"),
      bearer("secrets"),
      bearer("Secret"),
      bearer("secreu"),
      bearer('"secret"'),
      bearer(hashOf("secret").toString("hex")),
      { "x-api-key": "" },
      { "x-api-key": "secret, secret" },
      { "x-api-key": "Bearer secret" },
      { ...bearer("wrong"), "x-api-key": "secret" },
      { Authorization: "Basic secret", "api-key": "secret" },
      { "x-api-key": "wrong", "api-key": "secret" },
      { Cookie: "api-key=secret" },
    ] as Headers[]) {
      await expectRefusal(await ask("/v1/models", headers));
    }
    await expectRefusal(await ask("/v1/models?api-key=secret"));
  });

  test("that is rejected is not echoed", async () => {
    const response = await ask("/v1/models", bearer("secreu"));
    expect(await response.text()).not.toContain("secre");
  });

  test("is needed on every path and method except GET /health", async () => {
    for (const path of [
      "/",
      "/v1/models",
      "//v1/models",
      "/v1//models",
      "/v1/models/",
      "/V1/models",
      "/v1%2fmodels",
      "/absent",
      "/health/",
      "//health",
      "/health/x",
      "/health;x",
      "/HEALTH",
      "/healthz",
      "/x/health",
    ]) {
      for (const method of ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]) {
        const response = await ask(path, {}, method);
        expect([path, method, response.status]).toEqual([path, method, 401]);
      }
    }
    for (const method of ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"]) {
      await expectRefusal(await ask("/health", {}, method));
    }
    expect((await ask("/absent", bearer("secret"))).status).toBe(404);
  });

  test("is not needed for /health, even if a wrong one is sent", async () => {
    for (const headers of [{}, bearer("wrong")] as Headers[]) {
      const response = await ask("/health?x=1", headers);
      expect([response.status, await response.json()]).toEqual([200, { caller: "nobody" }]);
      expect((await ask("/health", headers, "HEAD")).status).toBe(200);
    }
    expect(await (await ask("/health", bearer("secret"))).json()).toEqual({ caller: "api-key-1" });
  });

  test("is not needed for the preflight of an allowed page, which has none yet", async () => {
    const preflight = { "Access-Control-Request-Method": "GET" };
    const allowed = await ask("/v1/models", { Origin: "http://app.test", ...preflight }, "OPTIONS");
    expect(allowed.status).toBe(204);
    // The page can read why it was refused.
    const response = await ask("/v1/models", { Origin: "http://app.test" });
    expect(response.headers.get("Access-Control-Allow-Origin")).toBe("http://app.test");
    await expectRefusal(response);
  });

  test("is not needed if no keys are set", async () => {
    ring = new KeyRing({});
    for (const headers of [{}, bearer("any")] as Headers[]) {
      expect(await (await ask("/v1/models", headers)).json()).toBe("anonymous");
      expect((await ask("/v1/unload", headers, "POST")).status).toBe(200);
    }
  });

  test("is looked up in the current key ring", async () => {
    ring.reload({ keys: [entry("bob")] });
    await expectRefusal(await ask("/v1/models", bearer("key-of-alice")));
    expect(await (await ask("/v1/models", bearer("key-of-bob"))).json()).toBe("bob");
  });
});

test("only owners manage the server", async () => {
  expect((await ask("/v1/unload", bearer("secret"), "POST")).status).toBe(200);
  const refused = await ask("/v1/unload", bearer("key-of-alice"), "POST");
  expect(refused.status).toBe(403);
  expect(await refused.json()).toMatchObject({ error: { type: "invalid_request_error" } });
});

describe("limits", () => {
  const alice = bearer("key-of-alice");
  const whole = (tokens: number) => ask("/v1/whole", alice, "POST", `${tokens}`);
  const activeOf = (key: string) => ring.find(key)!.limiter.active;

  test("are in the headers of a response, with what it used", async () => {
    useFile(entry("alice", { requests_per_minute: 60, tokens_per_minute: 600 }));
    const response = await whole(100);
    expect([response.status, await response.text()]).toEqual([200, "whole"]);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      "x-ratelimit-limit-requests": "60",
      "x-ratelimit-remaining-requests": "59",
      "x-ratelimit-reset-requests": "1s",
      "x-ratelimit-limit-tokens": "600",
      "x-ratelimit-remaining-tokens": "500",
      "x-ratelimit-reset-tokens": "10s",
    });
    const free = await ask("/v1/whole", bearer("secret"), "POST", "5");
    expect([...free.headers.keys()].filter((name) => name.startsWith("x-ratelimit"))).toEqual([]);
  });

  test("that are exceeded give 429 with Retry-After and the headers", async () => {
    useFile(entry("alice", { requests_per_minute: 40, tokens_per_minute: 600 }));
    await whole(601);
    const response = await whole(1);
    expect(response.status).toBe(429);
    expect(await response.json()).toEqual({
      error: {
        message: "Rate limit reached for tokens per minute: limit 600. Please try again in 200ms.",
        type: "tokens",
        param: null,
        code: "rate_limit_exceeded",
      },
    });
    expect(Object.fromEntries(response.headers)).toMatchObject({
      "retry-after": "1",
      "x-ratelimit-remaining-requests": "39",
      "x-ratelimit-remaining-tokens": "0",
    });
    nowMs += 200;
    expect((await whole(1)).status).toBe(200);
  });

  test("of requests round the wait up to seconds", async () => {
    useFile(entry("alice", { requests_per_minute: 40 }));
    for (let i = 0; i < 40; i++) expect((await whole(0)).status).toBe(200);
    const response = await whole(0);
    expect([response.status, response.headers.get("Retry-After")]).toEqual([429, "2"]);
    expect(await response.json()).toMatchObject({ error: { type: "requests" } });
    expect((await ask("/v1/models", alice)).status).toBe(200);
  });

  test("of concurrent requests hold until a stream ends", async () => {
    useFile(entry("alice", { concurrent: 1 }));
    expect((await ask("/v1/stream", alice, "POST")).status).toBe(200);
    expect(activeOf("key-of-alice")).toBe(1);
    const refused = await whole(0);
    expect([refused.status, refused.headers.get("Retry-After")]).toEqual([429, "1"]);
    expect(await refused.json()).toMatchObject({
      error: {
        message: "Rate limit reached for requests at once: limit 1. Please try again in 1s.",
      },
    });
    streams.pop()!();
    await Promise.resolve();
    expect(activeOf("key-of-alice")).toBe(0);
    expect((await whole(0)).status).toBe(200);
  });

  test("release every request, even one that fails", async () => {
    useFile(entry("alice", { concurrent: 1, requests_per_minute: 10 }));
    const failed = await ask("/v1/fail", alice, "POST");
    expect([failed.status, failed.headers.get("x-ratelimit-remaining-requests")]).toEqual([
      500,
      "9",
    ]);
    await whole(0);
    await ask("/v1/whole", alice, "POST", "not JSON");
    expect(activeOf("key-of-alice")).toBe(0);
  });
});

describe("over a socket", () => {
  const server = listen((request) => app.fetch(request));
  afterAll(() => server.stop(0));

  /** The status of the answer to these bytes. */
  function statusOf(line: string, ...headers: string[]): Promise<number> {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const socket = connect(server.port, "127.0.0.1", () =>
      socket.write([`${line} HTTP/1.1`, ...headers, "Connection: close", "", ""].join("\r\n")),
    );
    let answer = "";
    socket.on("data", (bytes) => {
      answer += bytes;
    });
    socket.on("close", () => resolve(Number(/^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1])));
    socket.on("error", reject);
    return promise;
  }

  const key = "Authorization: Bearer secret";

  test("no spelling of a path avoids the key", async () => {
    for (const target of [
      "/v1/models",
      "//v1/models",
      "///v1/models",
      "/v1/../v1/models",
      "/health/../v1/models",
      "/health/..%2fv1/models",
      "/health/%2e%2e/v1/models",
      "/v1%2fmodels",
      "/v1/models%00",
      "/\\v1\\models",
      "/./v1/models",
      "/v1/models?/health",
      "/v1/models#/health",
      "//health",
      "//localhost/health",
      "/health%2f",
      "/health%00",
      "http://localhost/v1/models",
      "http://localhost//health",
    ]) {
      expect([target, await statusOf(`GET ${target}`, "Host: localhost")]).toEqual([target, 401]);
    }
    expect(await statusOf("GET /v1/models", "Host: localhost", key)).toBe(200);
    expect(await statusOf("GET http://localhost/v1/models", "Host: evil", key)).toBe(200);
    expect(await statusOf("GET http://evil/v1/models", "Host: localhost", key)).toBe(403);
    expect(await statusOf("GET http://evil/health", "Host: localhost")).toBe(403);
    expect(await statusOf("GET /health", "Host: localhost")).toBe(200);
  });

  test("no Host makes a path look like another", async () => {
    for (const host of [
      "localhost/health?",
      "localhost/health#",
      "localhost/health/",
      "user@localhost",
      "localhost localhost",
      "[::1",
      "evil.test",
      "",
    ]) {
      for (const target of ["/v1/models", "/x/health", "/health"]) {
        expect([host, await statusOf(`GET ${target}`, `Host: ${host}`)]).toEqual([host, 403]);
      }
    }
    expect(await statusOf("GET /health")).toBe(400);
    expect(await statusOf("GET /health", "Host: localhost", "Host: localhost")).toBe(400);
    expect(await statusOf("GET /health", "Host: localhost", "Host: evil.test")).toBe(400);
  });

  test("two keys count as none", async () => {
    expect(await statusOf("GET /v1/models", "Host: localhost", key, key)).toBe(401);
    const other = "x-api-key: secret";
    expect(await statusOf("GET /v1/models", "Host: localhost", other)).toBe(200);
    expect(await statusOf("GET /v1/models", "Host: localhost", other, other)).toBe(401);
  });
});
