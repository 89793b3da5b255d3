import { describe, expect, test } from "bun:test";
import { Hono } from "hono";
import { bindProblem, isLoopback } from "../../../src/http/frame/bind.ts";
import type { HttpEnv } from "../../../src/http/frame/env.ts";
import { errorResponse } from "../../../src/http/frame/errors.ts";
import { type GuardOptions, guard } from "../../../src/http/frame/guard.ts";

/** An app whose handler answers with a Response of its own. */
function appOf(options: Partial<GuardOptions> = {}) {
  const app = new Hono<HttpEnv>()
    .use(guard({ loopback: true, allowedHosts: [], allowedOrigins: [], ...options }))
    .all("/fail", () => {
      throw new Error("no");
    })
    .all("/*", () => new Response("yes", { headers: { Vary: "Accept" } }));
  app.onError((error) => errorResponse(error));
  return (headers: Record<string, string>, method = "GET", path = "/v1/models") =>
    Promise.resolve(app.request(path, { method, headers }));
}

const statusOf = async (answer: Promise<Response>) => (await answer).status;

const corsHeaders = (response: Response) =>
  [...response.headers.keys()].filter((name) => name.startsWith("access-control"));

/** Forbidden with an OpenAI error, and without CORS headers. */
async function expectForbidden(response: Response): Promise<void> {
  expect(response.status).toBe(403);
  expect(corsHeaders(response)).toEqual([]);
  expect(await response.json()).toEqual({
    error: { message: expect.any(String), type: "invalid_request_error", param: null, code: null },
  });
}

describe("the Host header", () => {
  const local = ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.1.2.3:9", "[::1]", "[::1]:8080"];
  const foreign = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil-localhost",
    "localhost.",
    "0.0.0.0",
    "0.0.0.0:8080",
    "[::]",
    "192.168.0.1",
    "127.1",
    "2130706433",
    "169.254.169.254",
  ];
  const malformed = "localhost/x a@localhost localhost:x [::1].evil.example".split(" ");
  malformed.push("", " ", "localhost, localhost");

  test("must be this machine's own on a loopback bind", async () => {
    const ask = appOf();
    for (const Host of local) expect([Host, await statusOf(ask({ Host }))]).toEqual([Host, 200]);
    for (const Host of [...foreign, ...malformed]) await expectForbidden(await ask({ Host }));
    await expectForbidden(await ask({}));
  });

  test("may be one that is allowed, with or without its port", async () => {
    const ask = appOf({ allowedHosts: ["My.Test", "other.test:81", "fe80::1"] });
    for (const Host of ["my.test", "MY.TEST:1", "other.test:81", "[fe80::1]:80", "localhost"]) {
      expect([Host, await statusOf(ask({ Host }))]).toEqual([Host, 200]);
    }
    for (const Host of ["x.my.test", "other.test", "other.test:82", "evil.example"]) {
      await expectForbidden(await ask({ Host }));
    }
    expect(await statusOf(appOf({ allowedHosts: ["*"] })({ Host: "any.test" }))).toBe(200);
  });

  test("on another bind is checked only with --allowed-hosts, but must be well formed", async () => {
    const ask = appOf({ loopback: false });
    for (const Host of [...local, ...foreign]) {
      expect([Host, await statusOf(ask({ Host }))]).toEqual([Host, 200]);
    }
    for (const Host of malformed) await expectForbidden(await ask({ Host }));
    const strict = appOf({ loopback: false, allowedHosts: ["my.test"] });
    for (const Host of ["my.test:8080", "localhost"]) {
      expect(await statusOf(strict({ Host }))).toBe(200);
    }
    for (const Host of ["evil.example", "192.168.0.1"])
      await expectForbidden(await strict({ Host }));
  });
});

describe("the Origin header", () => {
  const Host = "localhost:8080";
  const preflight = { Host, "Access-Control-Request-Method": "POST" };

  test("may be the server's own, or missing", async () => {
    const ask = appOf();
    for (const headers of [
      { Host },
      { Host, Origin: "http://localhost:8080" },
      { Host, Origin: "https://localhost:8080" },
      { Host, Origin: "http://localhost:8080", "Sec-Fetch-Site": "same-origin" },
    ]) {
      const response = await ask(headers, "POST");
      expect([response.status, corsHeaders(response)]).toEqual([200, []]);
    }
  });

  test("of another page is rejected, without CORS headers", async () => {
    for (const ask of [
      appOf(),
      appOf({ allowedOrigins: ["https://app.test"] }),
      appOf({ loopback: false }),
    ]) {
      for (const Origin of [
        "null",
        "",
        "https://evil.example",
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:8080",
        "http://localhost:8080.evil.example",
        "http://localhost:8080/",
        "http://app.test",
        "https://app.test.evil.example",
        "https://x.app.test",
        "https://app.test, https://evil.example",
      ]) {
        for (const method of ["GET", "POST"])
          await expectForbidden(await ask({ Host, Origin }, method));
        await expectForbidden(await ask({ ...preflight, Origin }, "OPTIONS"));
      }
    }
  });

  test("that is allowed may read the answer, and errors", async () => {
    const ask = appOf({ allowedOrigins: ["https://App.test", "chrome-extension://abc"] });
    for (const Origin of ["https://app.test", "chrome-extension://abc"]) {
      for (const [path, status] of [
        ["/v1/models", 200],
        ["/fail", 500],
      ] as const) {
        const response = await ask({ Host, Origin, "Sec-Fetch-Site": "cross-site" }, "POST", path);
        expect(response.status).toBe(status);
        expect(response.headers.get("Access-Control-Allow-Origin")).toBe(Origin);
        expect(response.headers.get("Vary")).toEndWith("Origin");
        const exposed = response.headers.get("Access-Control-Expose-Headers");
        for (const name of ["x-request-id", "x-ratelimit-reset-tokens", "retry-after"]) {
          expect(exposed).toContain(name);
        }
        expect(response.headers.has("Access-Control-Allow-Credentials")).toBe(false);
      }
    }
    expect((await ask({ Host, Origin: "https://app.test" })).headers.get("Vary")).toBe(
      "Accept, Origin",
    );
  });

  test("that is allowed gets its preflight answered", async () => {
    const ask = appOf({ allowedOrigins: ["https://app.test"] });
    const asked = "authorization,content-type,x-stainless-lang,x-anything";
    const headers = { ...preflight, Origin: "https://app.test" };
    const all = { ...headers, "Access-Control-Request-Headers": asked };
    const response = await ask(all, "OPTIONS", "/fail");
    expect([response.status, await response.text()]).toEqual([204, ""]);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      "access-control-allow-origin": "https://app.test",
      "access-control-allow-methods": "GET, HEAD, POST, DELETE",
      "access-control-allow-headers": asked,
      vary: "Access-Control-Request-Headers, Origin",
    });
    const plain = await ask(headers, "OPTIONS");
    expect(plain.headers.get("Access-Control-Allow-Headers")).toBe(
      "Authorization, Content-Type, X-Request-Id",
    );
    // Not a preflight.
    expect(await (await ask({ Host, Origin: "https://app.test" }, "OPTIONS")).text()).toBe("yes");
    expect(await (await ask(preflight, "OPTIONS")).text()).toBe("yes");
  });

  test("may be any if all are allowed", async () => {
    const ask = appOf({ allowedOrigins: ["*"] });
    for (const Origin of ["https://any.test", "null"]) {
      const response = await ask({ Host, Origin });
      expect(response.headers.get("Access-Control-Allow-Origin")).toBe(Origin);
    }
    await expectForbidden(await ask({ Host: "evil.example", Origin: "https://any.test" }));
  });
});

describe("a page of another site without Origin", () => {
  const headers = { Host: "localhost", "Sec-Fetch-Site": "cross-site" };

  test("may not embed the server's responses", async () => {
    for (const dest of ["image", "script", "iframe", "empty"]) {
      await expectForbidden(await appOf()({ ...headers, "Sec-Fetch-Dest": dest }));
    }
    await expectForbidden(await appOf()(headers));
    expect(await statusOf(appOf({ allowedOrigins: ["*"] })(headers))).toBe(200);
  });

  test("may link to the server", async () => {
    const link = { "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document" };
    expect(await statusOf(appOf()({ ...headers, ...link }))).toBe(200);
    for (const site of ["none", "same-origin", "same-site"]) {
      expect(await statusOf(appOf()({ ...headers, "Sec-Fetch-Site": site }))).toBe(200);
    }
  });
});

test("every response forbids content sniffing", async () => {
  const ask = appOf({ allowedOrigins: ["https://app.test"] });
  const Host = "localhost";
  for (const answer of [
    ask({ Host }),
    ask({ Host: "evil.example" }),
    ask({ Host }, "GET", "/fail"),
    ask({ Host, Origin: "https://app.test", "Access-Control-Request-Method": "GET" }, "OPTIONS"),
  ]) {
    expect((await answer).headers.get("X-Content-Type-Options")).toBe("nosniff");
  }
});

test("a bind that others can reach needs keys, or --insecure-no-auth", () => {
  const without = { keysSet: false, insecureNoAuth: false };
  for (const host of ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LocalHost"]) {
    expect(isLoopback(host)).toBe(true);
    expect(bindProblem({ host, ...without })).toBeUndefined();
  }
  for (const host of ["0.0.0.0", "::", "192.168.0.1", "my.test", "127.evil.test", "", "::2"]) {
    expect(isLoopback(host)).toBe(false);
    const problem = bindProblem({ host, ...without })!;
    for (const way of ["--api-key", "mlx-serve keys add", "--insecure-no-auth"]) {
      expect(problem).toContain(way);
    }
    expect(problem).not.toContain("\n");
    expect(bindProblem({ host, ...without, keysSet: true })).toBeUndefined();
    expect(bindProblem({ host, ...without, insecureNoAuth: true })).toBeUndefined();
  }
});
