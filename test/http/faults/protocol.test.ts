// HTTP itself: pipelining, half-closed connections, bodies that come slowly or are not wanted, odd methods and
// encodings.
import { describe, expect, test } from "bun:test";
import { expectRefusal } from "../../support/fault-checks.ts";
import {
  exchange,
  RawConnection,
  readResponse,
  readResponses,
  requestText,
} from "../../support/raw-http.ts";
import { startTestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const MIB = 2 ** 20;
const path = "/v1/completions";
const completion = { prompt: "Once upon", max_tokens: 200, ignore_eos: true, temperature: 0 };
const json = { "Content-Type": "application/json" };
const last = { Connection: "close" };

const server = useTestServer({ idleSeconds: 1 });

async function send(...requests: string[]): Promise<RawConnection> {
  const connection = await RawConnection.open(server.port);
  await connection.write(requests.join(""));
  return connection;
}

const tokensOf = (body: string) => JSON.parse(body).usage.completion_tokens;
const requests = async () => (await server.serving.engine.stats())[0]!.requests;

async function until(isSo: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isSo())) await Bun.sleep(2);
}

describe("requests behind a running completion", () => {
  test("are answered after it, in order", async () => {
    const connection = await send(
      requestText(path, { body: completion }),
      requestText("/health"),
      requestText(path, { body: { ...completion, stream: true } }),
      requestText(path, { headers: last, body: { ...completion, max_tokens: 7 } }),
    );
    await connection.ended;
    const [first, health, stream, short] = readResponses(connection.received);
    expect(tokensOf(first!.body)).toBe(200);
    expect(health!.body).toBe('{"status":"ok"}');
    expect(stream!.body).toEndWith("data: [DONE]\n\n");
    expect(tokensOf(short!.body)).toBe(7);
  });

  test("that arrive while it runs are answered too, however long they are", async () => {
    const long = { ...completion, prompt: `${"a ".repeat(MIB / 4)}`, max_tokens: 1 };
    const connection = await send(requestText(path, { body: { ...completion, stream: true } }));
    await connection.receive(1);
    void connection.write(requestText(path, { body: long }));
    void connection.write(requestText("/health", { headers: last }));
    await connection.ended;
    const [stream, ...others] = readResponses(connection.received);
    expect(stream!.body).toEndWith("data: [DONE]\n\n");
    expect(others.map(({ status }) => status)).toEqual([400, 200]);
  });
});

describe("a client that has sent all it has to send, and says so", () => {
  test.each([false, true])("gets its answers (stream: %p)", async (stream) => {
    const request = requestText(path, { body: { ...completion, stream } });
    const connection = await send(request, request);
    connection.endWriting();
    await connection.ended;
    const answers = readResponses(connection.received);
    expect(answers.map(({ status }) => status)).toEqual([200, 200]);
    for (const { body } of answers) {
      if (stream) expect(body).toEndWith("data: [DONE]\n\n");
      else expect(tokensOf(body)).toBe(200);
    }
  });

  test("and then leaves all the same takes its request along", async () => {
    const connection = await send(requestText(path, { body: { ...completion, max_tokens: 3000 } }));
    await until(async () => (await requests()).length === 1);
    connection.endWriting();
    await Bun.sleep(100);
    expect(await requests()).toHaveLength(1);
    connection.leave();
    await until(async () => (await requests()).length === 0);
  });

  test("in the middle of a body is told that the rest is missing", async () => {
    const connection = await send(requestText(path, { body: completion }).slice(0, -5));
    connection.endWriting();
    await connection.ended;
    await expectRefusal(readResponses(connection.received)[0]!, { status: 400 });
  });
});

describe("a body", () => {
  test("that keeps coming is never cut", async () => {
    const body = JSON.stringify({ ...completion, prompt: "a ".repeat(1500), max_tokens: 1 });
    const headers = { ...json, ...last, "Content-Length": body.length };
    const connection = await send(requestText(path, { method: "POST", headers }));
    // Six times the idle timeout.
    const step = Math.ceil(body.length / 30);
    for (let sent = 0; sent < body.length; sent += step) {
      await connection.write(body.slice(sent, sent + step));
      await Bun.sleep(200);
    }
    await connection.ended;
    expect(readResponse(connection.received)).toMatchObject({ status: 200 });
  }, 30_000);

  test("that stalls, or comes by single bytes, is 408", async () => {
    const text = requestText(path, { body: { ...completion, prompt: "a".repeat(1000) } });
    const connections = [await send(text.slice(0, -20)), await send(text.slice(0, -900))];
    const drip = setInterval(() => void connections[1]!.write("a"), 200);
    for (const connection of connections) {
      await connection.ended;
      const answer = readResponse(connection.received);
      await expectRefusal(answer, { status: 408 });
      expect(answer.headers.get("connection")).toBe("close");
    }
    clearInterval(drip);
  }, 30_000);

  test("may have extensions and trailers around its chunks", async () => {
    const headers = { ...json, "Transfer-Encoding": "chunked", Trailer: "x-sum" };
    const body = JSON.stringify({ ...completion, max_tokens: 3 });
    const chunks = [body.slice(0, 9), body.slice(9)].map(
      (chunk) => `${chunk.length.toString(16)};name="value"\r\n${chunk}\r\n`,
    );
    const connection = await send(
      requestText(path, { method: "POST", headers }),
      ...chunks,
      "0\r\nx-sum: 7\r\nx-other: a\r\n\r\n",
      requestText("/health", { headers: last }),
    );
    await connection.ended;
    const [first, health] = readResponses(connection.received);
    expect(tokensOf(first!.body)).toBe(3);
    expect(health!.status).toBe(200);
  });

  test("that is compressed is 415", async () => {
    const body = Bun.gzipSync(JSON.stringify(completion));
    for (const coding of ["gzip", "br", "gzip, identity"]) {
      const encoding = { "Content-Encoding": coding, "Content-Length": body.length };
      const headers = { ...json, ...last, ...encoding };
      const head = Buffer.from(requestText(path, { method: "POST", headers }));
      const answer = await exchange(server.port, Buffer.concat([head, body]));
      await expectRefusal(answer, { status: 415 });
    }
    const identity = { ...last, "Content-Encoding": "identity" };
    const answer = await exchange(
      server.port,
      requestText(path, { headers: identity, body: completion }),
    );
    expect(answer.status).toBe(200);
  });

  test.each([
    [413, path, {}],
    [404, "/nowhere", {}],
    [401, path, { Authorization: "Bearer wrong" }],
  ])(
    "that is not read to its end closes the connection after a %d",
    async (status, to, headers) => {
      await using keyed = await startTestServer({ args: ["--api-key", "right"] });
      const usual = { Authorization: "Bearer right", ...json, "Content-Length": 800 * MIB };
      const connection = await RawConnection.open(keyed.port);
      await connection.write(
        requestText(to, { method: "POST", headers: { ...usual, ...headers } }),
      );
      let sent = 0;
      while (connection.isOpen && sent < 800) {
        await connection.write(new Uint8Array(MIB));
        sent++;
      }
      expect(sent).toBeLessThan(100);
      const answer = readResponse(connection.received);
      await expectRefusal(answer, { status });
      expect(answer.headers.get("connection")).toBe("close");
    },
    30_000,
  );

  test("that is small and not read leaves the connection open", async () => {
    const refused = requestText("/nowhere", { body: { a: "a".repeat(5000) } });
    const connection = await send(refused, refused, requestText("/health", { headers: last }));
    await connection.ended;
    const statuses = readResponses(connection.received).map(({ status }) => status);
    expect(statuses).toEqual([404, 404, 200]);
  });

  test("is asked for only if it is wanted", async () => {
    const headers = { Expect: "100-continue", ...last };
    const [head, body] = requestText(path, { headers, body: completion }).split("\r\n\r\n");
    const connection = await send(`${head}\r\n\r\n`);
    await connection.receive(1);
    expect(connection.received).toBe("HTTP/1.1 100 Continue\r\n\r\n");
    await connection.write(body!);
    await connection.ended;
    expect(readResponses(connection.received)[0]!.status).toBe(200);
    const unwanted = { ...headers, ...json, "Content-Length": 100 * MIB };
    const refused = await exchange(
      server.port,
      requestText(path, { method: "POST", headers: unwanted }),
    );
    await expectRefusal(refused, { status: 413 });
  });
});

describe("a head", () => {
  test("that arrives too slowly is 408; a silent connection is just closed", async () => {
    const [silent, stalled, dripping] = [
      await send(""),
      await send("GET /v1/models HTTP/1.1\r\nHo"),
      await send("GET /v1/models HTTP/1.1\r\n"),
    ];
    const drip = setInterval(() => void dripping!.write("x-a: a\r\n"), 200);
    for (const connection of [stalled, dripping]) {
      await connection!.ended;
      await expectRefusal(readResponse(connection!.received), { status: 408 });
    }
    clearInterval(drip);
    await silent!.ended;
    expect(silent!.received).toBe("");
  }, 30_000);

  test.each(["BREW", "TRACE", "CONNECT", "PROPFIND", "get"])(
    "with the method %s is 501",
    async (method) => {
      const answer = await exchange(server.port, requestText("/health", { method, headers: last }));
      await expectRefusal(answer, { status: 501 });
    },
  );

  test("of another protocol is refused", async () => {
    const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    await expectRefusal(await exchange(server.port, http2), { status: 505 });
    const tls = Uint8Array.of(0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03);
    await expectRefusal(await exchange(server.port, tls), { status: 400 });
  });
});
