import { afterAll, describe, expect, test } from "bun:test";
import { makeLogger } from "../../../src/log.ts";
import { listen } from "../../support/http-service.ts";
import { makeRandom } from "../../support/random.ts";
import { exchange, RawConnection, readResponses, requestText } from "../../support/raw-http.ts";

const encoder = new TextEncoder();
const last = { Connection: "close" };

/** Answers with what it was asked; a path of its own for each kind of response. */
async function answer(request: Request): Promise<Response> {
  const { pathname, search } = new URL(request.url);
  switch (pathname) {
    case "/none":
      return new Response(null, { status: 204 });
    case "/pieces":
      return streamOf(["a", "", "b".repeat(100), ""]);
    case "/broken":
      return streamOf(["a", new Error("no more")]);
    case "/throws":
      throw new Error("a fault of the service");
    default: {
      const body = await request.text();
      return Response.json({ method: request.method, path: pathname + search, body });
    }
  }
}

function streamOf(pieces: (string | Error)[]): Response {
  const body = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        const piece = pieces.shift();
        if (piece === undefined) controller.close();
        else if (piece instanceof Error) controller.error(piece);
        else controller.enqueue(encoder.encode(piece));
      },
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { headers: { "Transfer-Encoding": "chunked" } });
}

const listener = listen(answer);
afterAll(() => listener.stop(0));
const { port } = listener;

describe("a response", () => {
  test("is written with a date and its length", async () => {
    const { status, headers, body } = await exchange(port, requestText("/a?b", { headers: last }));
    expect([status, JSON.parse(body)]).toEqual([200, { method: "GET", path: "/a?b", body: "" }]);
    expect(headers.get("content-length")).toBe(String(body.length));
    expect(Math.abs(Date.parse(headers.get("date")!) - Date.now())).toBeLessThan(10_000);
  });

  test("has no body where there can be none", async () => {
    const texts = [
      requestText("/a", { method: "HEAD" }),
      requestText("/pieces", { method: "HEAD" }),
      requestText("/none"),
      requestText("/a", { headers: last }),
    ];
    const received = await replyTo(texts.join(""));
    const [head, pieces, none, whole] = received.split(/(?=HTTP\/1\.1 )/);
    for (const response of [head, pieces, none]) expect(response).toEndWith("\r\n\r\n");
    expect(none).not.toMatch(/content-length|transfer-encoding/i);
    expect(whole).toContain('"path":"/a"');
  });

  test("of unknown length comes in chunks, and empty pieces do not end it", async () => {
    const received = await replyTo(
      requestText("/pieces") + requestText("/pieces", { headers: last }),
    );
    const bodies = readResponses(received).map(({ body }) => body);
    expect(bodies).toEqual(Array(2).fill(`a${"b".repeat(100)}`));
  });

  test("that fails is cut off before its end", async () => {
    const received = await replyTo(requestText("/broken"));
    expect(received).toContain("\r\n1\r\na\r\n");
    expect(received).not.toContain("0\r\n\r\n");
  });

  test("to a request that makes the service throw is 500", async () => {
    const { status, body } = await exchange(port, requestText("/throws"));
    expect([status, JSON.parse(body).error.message]).toEqual([500, "Internal error."]);
  });
});

describe("a connection is closed, and the log says why,", () => {
  const fault = new Error("a fault");
  const unreadable = () =>
    new Response(new ReadableStream({ start: (controller) => controller.error(fault) }));
  test.each([
    [
      "if the refusal cannot be made",
      () => {
        throw fault;
      },
    ],
    ["if the refusal cannot be written", unreadable],
  ])("%s", async (_, refuse) => {
    const errors: unknown[] = [];
    const log = makeLogger({ level: "error", format: "json" });
    log.error = (told: unknown) => errors.push(told);
    const own = listen(answer, 30_000, { refuse, log });
    const connection = await RawConnection.open(own.port);
    await connection.write(requestText("/throws"));
    await connection.ended;
    expect([connection.received, errors]).toEqual(["", [{ err: fault }]]);
    await own.stop(0);
  });
});

describe("a client of HTTP/1.0", () => {
  const ask = (path: string, ...headers: string[]) =>
    replyTo([`GET ${path} HTTP/1.0`, ...headers, "", ""].join("\r\n"));

  test("needs no Host, and its connection is closed", async () => {
    expect(await ask("/a")).toContain("\r\nConnection: close\r\n");
  });

  test("gets no chunks", async () => {
    const received = await ask("/pieces", "Connection: keep-alive");
    expect(received).toEndWith(`\r\n\r\na${"b".repeat(100)}`);
    expect(received).not.toMatch(/transfer-encoding/i);
    expect(received).toContain("\r\nConnection: close\r\n");
  });

  test("may keep its connection", async () => {
    const kept = "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    const received = await replyTo(`${kept}GET /b HTTP/1.0\r\n\r\n`);
    expect(received).toContain("\r\nConnection: keep-alive\r\n");
    expect(readResponses(received)).toHaveLength(2);
  });
});

/** All that comes back for these bytes. */
async function replyTo(bytes: string): Promise<string> {
  const connection = await RawConnection.open(port);
  await connection.write(bytes);
  await connection.ended;
  return connection.received;
}

describe("requests", () => {
  const body = (text: string) => ({ method: "POST", headers: { "Content-Length": text.length } });
  const chunks = { method: "POST", headers: { "Transfer-Encoding": "chunked" } };
  const requests = [
    requestText("/1"),
    `\r\n${requestText("/2", body("two"))}two\r\n`,
    `${requestText("/3", chunks)}2;x\r\nth\r\n3\r\nree\r\n0\r\nx: y\r\n\r\n`,
    `${requestText("/4", { ...body("four"), method: "GET" })}four`,
    requestText("/5", { headers: { Upgrade: "h2c", Connection: "Upgrade, HTTP2-Settings" } }),
    `${requestText("/6", { ...body("last"), headers: { "Content-Length": 4, ...last } })}last`,
  ];
  const expected = [
    { method: "GET", path: "/1", body: "" },
    { method: "POST", path: "/2", body: "two" },
    { method: "POST", path: "/3", body: "three" },
    { method: "GET", path: "/4", body: "" },
    { method: "GET", path: "/5", body: "" },
    { method: "POST", path: "/6", body: "last" },
  ];
  const bytes = Buffer.from(requests.join(""));

  test("are the same in whatever pieces they come", async () => {
    const random = makeRandom(11);
    for (let round = 0; round < 40; round++) {
      const connection = await RawConnection.open(port);
      const cuts = Array.from({ length: random.below(12) }, () => random.below(bytes.length));
      let from = 0;
      for (const cut of [...cuts.sort((a, b) => a - b), bytes.length]) {
        await connection.write(bytes.subarray(from, cut));
        await Bun.sleep(random.below(3));
        from = cut;
      }
      await connection.ended;
      const answers = readResponses(connection.received).map(({ body }) => JSON.parse(body));
      expect([cuts, answers]).toEqual([cuts, expected]);
    }
  }, 30_000);

  test("that are broken are refused or closed, and break nothing", async () => {
    const random = makeRandom(12);
    const round = async () => {
      const broken = Buffer.from(bytes);
      for (let changes = 1 + random.below(6); changes > 0; changes--) {
        broken[random.below(broken.length)] = random.below(256);
      }
      const garbage = Buffer.from(
        Array.from({ length: random.below(400) }, () => random.below(256)),
      );
      const connection = await RawConnection.open(port);
      await connection.write(random.chance(0.7) ? broken : garbage);
      // Otherwise one that waits for more would be closed only after the timeout.
      connection.endWriting();
      await connection.ended;
      return connection.received;
    };
    for (let i = 0; i < 20; i++) {
      for (const received of await Promise.all(Array.from({ length: 20 }, round))) {
        for (const { status } of readResponses(received)) {
          expect([200, 400, 417, 431, 501, 505]).toContain(status);
        }
      }
    }
    expect(readResponses(await replyTo(bytes.toString()))).toHaveLength(expected.length);
  }, 60_000);
});

test("many requests at once let others in between", async () => {
  const count = 2000;
  let turns = 0;
  let isOver = false;
  const turn = () => {
    turns++;
    if (!isOver) setImmediate(turn);
  };
  turn();
  const texts = Array.from({ length: count }, () => requestText("/none"));
  await replyTo(texts.join("") + requestText("/none", { headers: last }));
  isOver = true;
  expect(turns).toBeGreaterThan(count / 2);
}, 30_000);

test("a request's signal aborts when its client leaves, and not when it only stops sending", async () => {
  const seen = Promise.withResolvers<Request>();
  const waiting = listen((request) => {
    seen.resolve(request);
    return new Promise<Response>((resolve) => {
      request.signal.addEventListener("abort", () => resolve(new Response()));
    });
  });
  const connection = await RawConnection.open(waiting.port);
  await connection.write(requestText("/"));
  const { signal } = await seen.promise;
  connection.endWriting();
  await connection.receive(1);
  expect(connection.received).toStartWith("HTTP/1.1 100 Continue\r\n\r\n");
  expect(signal.aborted).toBe(false);
  connection.leave();
  while (!signal.aborted) await Bun.sleep(5);
  await waiting.stop(0);
});

test("requests that a client has left behind are not answered", async () => {
  const paths: string[] = [];
  const slow = listen(async ({ url, signal }) => {
    paths.push(new URL(url).pathname);
    while (!signal.aborted) await Bun.sleep(5);
    return new Response();
  });
  const connection = await RawConnection.open(slow.port);
  await connection.write(requestText("/1") + requestText("/2"));
  while (paths.length === 0) await Bun.sleep(5);
  connection.leave();
  await slow.stop(10_000);
  expect(paths).toEqual(["/1"]);
});

describe("a listener that stops", () => {
  test("closes idle connections, and others after their response", async () => {
    const held = Promise.withResolvers<Response>();
    const own = listen(({ url }) => (url.endsWith("/slow") ? held.promise : new Response("a")));
    const [idle, used, busy] = await Promise.all(
      Array.from({ length: 3 }, () => RawConnection.open(own.port)),
    );
    await used!.write(requestText("/"));
    await used!.receive(1);
    await busy!.write(requestText("/slow"));
    await Bun.sleep(50);
    const stopped = own.stop(60_000);
    await Promise.all([idle!.ended, used!.ended]);
    expect(busy!.isOpen).toBe(true);
    expect(RawConnection.open(own.port)).rejects.toThrow();
    held.resolve(new Response("late"));
    await Promise.all([stopped, busy!.ended]);
    const [response] = readResponses(busy!.received);
    expect([response!.headers.get("connection"), response!.body]).toEqual(["close", "late"]);
  });

  test("cuts those that take too long", async () => {
    const own = listen(() => new Promise<Response>(() => {}));
    const connection = await RawConnection.open(own.port);
    await connection.write(requestText("/"));
    await Bun.sleep(50);
    await own.stop(100);
    await connection.ended;
    expect(connection.received).toBe("");
  });
});
