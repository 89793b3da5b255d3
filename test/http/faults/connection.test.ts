// Clients that send too much or too slowly, stop reading, or disconnect.
import { describe, expect, spyOn, test } from "bun:test";
import type { ModelStats } from "../../../src/engine/protocol.ts";
import { expectRefusal, expectUnharmed } from "../../support/fault-checks.ts";
import { exchange, RawConnection, readResponse, requestText } from "../../support/raw-http.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const MIB = 2 ** 20;
const path = "/v1/chat/completions";
const messages = [{ role: "user", content: "Say something." }];
/** A request that runs until it is aborted. */
const endless = { messages, max_tokens: 3000, ignore_eos: true, temperature: 0 };

const stats = async ({ serving }: TestServer) => (await serving.engine.stats())[0]!;

async function until(isSo: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isSo())) await Bun.sleep(2);
}

const openMany = ({ port }: TestServer, count: number) =>
  Promise.all(Array.from({ length: count }, () => RawConnection.open(port)));

describe("a server with an idle timeout of one second", () => {
  const server = useTestServer({ idleSeconds: 1, args: ["--stream-buffer", "64"] });

  const closed = async (connections: RawConnection[]) => {
    await Promise.all(connections.map(({ ended }) => ended));
    return connections.map(({ received }) => received);
  };

  test("a body over the limit by its Content-Length is 413, and is not kept", async () => {
    const before = process.memoryUsage.rss();
    const length = { "Content-Type": "application/json", "Content-Length": 500 * MIB };
    const connection = await RawConnection.open(server.port);
    await connection.write(requestText(path, { method: "POST", headers: length }));
    await connection.receive(1);
    const answer = readResponse(connection.received);
    await expectRefusal(answer, { status: 413 });
    for (let sent = 0; sent < 128; sent++) await connection.write(new Uint8Array(MIB));
    connection.leave();
    expect(process.memoryUsage.rss() - before).toBeLessThan(64 * MIB);
  });

  test("a chunked body over the limit is 413, and is not kept", async () => {
    const before = process.memoryUsage.rss();
    const chunked = { "Content-Type": "application/json", "Transfer-Encoding": "chunked" };
    const connection = await RawConnection.open(server.port);
    const start = '6\r\n{"a":"\r\n';
    await connection.write(requestText(path, { method: "POST", headers: chunked }) + start);
    const chunk = Buffer.from(`100000\r\n${"x".repeat(MIB)}\r\n`);
    for (let sent = 0; sent < 128; sent++) await connection.write(chunk);
    await connection.receive(1);
    await expectRefusal(readResponse(connection.received), { status: 413 });
    connection.leave();
    expect(process.memoryUsage.rss() - before).toBeLessThan(96 * MIB);
  });

  test("a body that no route reads is not kept", async () => {
    const before = process.memoryUsage.rss();
    const connection = await RawConnection.open(server.port);
    const headers = { "Content-Length": 500 * MIB };
    await connection.write(requestText("/nowhere", { method: "POST", headers }));
    for (let sent = 0; sent < 64; sent++) await connection.write(new Uint8Array(MIB));
    await expectRefusal(readResponse(connection.received), { status: 404 });
    connection.leave();
    expect(process.memoryUsage.rss() - before).toBeLessThan(64 * MIB);
  });

  test("huge or very many headers are 431", async () => {
    const many = Array.from({ length: 1000 }, (_, i) => [`x-${i}`, "a"]);
    for (const headers of [{ "x-a": "a".repeat(100_000) }, Object.fromEntries(many)]) {
      const answer = await exchange(server.port, requestText("/health", { headers }));
      await expectRefusal(answer, { status: 431 });
    }
    const far = await exchange(server.port, requestText(`/${"a".repeat(100_000)}`));
    expect(far.status).toBe(431);
  });

  test("bodies that arrive too slowly are 408, and block no other client", async () => {
    const connections = await openMany(server, 20);
    const text = requestText(path, { body: endless });
    for (const connection of connections) await connection.write(text.slice(0, -40));
    // Some send a byte now and then.
    const dripping = connections.slice(10);
    const timer = setInterval(() => {
      for (const connection of dripping) void connection.write(" ");
    }, 200);
    const errors = spyOn(server.serving.log, "error");
    await expectUnharmed(server);
    for (const received of await closed(connections)) {
      await expectRefusal(readResponse(received), { status: 408 });
    }
    clearInterval(timer);
    // A client's timeout is not a server error.
    expect(errors).not.toHaveBeenCalled();
    errors.mockRestore();
  }, 15_000);

  test("a response that is no longer read ends, and its connection is closed", async () => {
    // Garbage, of other tests too, says nothing of what is kept.
    Bun.gc(true);
    const before = process.memoryUsage.rss();
    // Log-probabilities fill the socket buffer quickly.
    const request = { ...endless, n: 16, stream: true, logprobs: true, top_logprobs: 20 };
    const connection = await RawConnection.open(server.port);
    await connection.write(requestText(path, { body: request }));
    await connection.receive(1000);
    connection.stopReading();
    await until(async () => (await server.metric("mlx_serve_requests_running")) === 0);
    const { requests, generatedTokens } = await stats(server);
    expect(requests).toEqual([]);
    expect(generatedTokens).toBeLessThan(16 * 1500);
    Bun.gc(true);
    expect(process.memoryUsage.rss() - before).toBeLessThan(96 * MIB);
    expect(await server.metric("mlx_serve_requests_in_progress")).toBe(1);
    // The idle timeout ends it without further action.
    await server.settled();
    connection.goOnReading();
    await connection.ended;
    expect(connection.received).not.toContain("[DONE]");
  }, 30_000);

  test("an idle connection is closed, one that waits for its response is not", async () => {
    const { models } = server.serving;
    const request = requestText(path, { body: { messages, max_tokens: 1 } });
    const [waiting, answered] = (await openMany(server, 2)) as [RawConnection, RawConnection];
    for (const connection of [waiting, answered]) {
      await connection.write(request);
      await connection.receive(1);
    }
    const slow = spyOn(models, "use").mockImplementationOnce(async (name) => {
      await Bun.sleep(6000);
      return models.use(name);
    });
    await waiting.write(request);
    const [once, twice] = (await closed([answered, waiting])).map((received) => {
      return received.match(/HTTP\/1.1 200 /g)!.length;
    });
    expect([once, twice]).toEqual([1, 2]);
    slow.mockRestore();
  }, 15_000);
});

test("a slow reader gets the whole response", async () => {
  await using server = await startTestServer();
  const request = { ...endless, max_tokens: 150, n: 8, logprobs: true, top_logprobs: 20 };
  const connection = await RawConnection.open(server.port);
  const headers = { Connection: "close" };
  await connection.write(requestText(path, { headers, body: { ...request, stream: true } }));
  for (let read = 0; connection.isOpen; read = connection.received.length) {
    connection.stopReading();
    await Bun.sleep(50);
    connection.goOnReading();
    await connection.receive(read + MIB);
  }
  expect(connection.received).toContain("data: [DONE]\n\n");
  expect(connection.received.match(/"finish_reason":"length"/g)).toHaveLength(8);
  expect(connection.received.match(/"top_logprobs"/g)).toHaveLength(150 * 8);
  await expectUnharmed(server);
}, 30_000);

describe.each([
  ["as a stream", true],
  ["in one piece", false],
])("a client that asked for its response %s and disconnects", (_, stream) => {
  const server = useTestServer({
    args: ["--max-batch-size", "1", "--token-budget", "32", "--no-prefix-caching"],
  });

  async function open(body: object): Promise<RawConnection> {
    const connection = await RawConnection.open(server.port);
    await connection.write(requestText(path, { body }));
    return connection;
  }

  const waitFor = (isSo: (stats: ModelStats) => boolean) =>
    until(async () => isSo(await stats(server)));

  /** Few steps after the client disconnects, and none once the engine knows. */
  async function expectFreed(connection: RawConnection): Promise<void> {
    const before = await stats(server);
    connection.leave();
    await waitFor(({ requests }) => requests.length === 0);
    const after = await stats(server);
    expect(after.steps - before.steps).toBeLessThan(50);
    await server.settled();
    expect((await stats(server)).steps).toBe(after.steps);
  }

  test("during its answer", async () => {
    const connection = await open({ ...endless, stream });
    await waitFor(({ requests }) => (requests[0]?.generated ?? 0) > 5);
    await expectFreed(connection);
  });

  test("during prefill", async () => {
    const long = [{ role: "user", content: "x".repeat(3500) }];
    const connection = await open({ ...endless, messages: long, stream });
    await waitFor(({ requests }) => (requests[0]?.blocks ?? 0) > 2);
    await expectFreed(connection);
    expect((await stats(server)).last!.decodeTokens).toBe(0);
  });

  test("while its model loads", async () => {
    const loading = spyOn(server.serving.models, "use");
    loading.mockImplementation(() => new Promise(() => {}));
    const connection = await open({ ...endless, stream });
    await until(() => loading.mock.calls.length === 1);
    connection.leave();
    await server.settled();
    loading.mockRestore();
  });

  test("while it is queued", async () => {
    const running = await open({ ...endless, stream: true });
    await waitFor(({ requests }) => requests.length === 1);
    const waiting = await open({ ...endless, stream });
    await waitFor(({ requests }) => requests.length === 2);
    const before = await stats(server);
    waiting.leave();
    await waitFor(({ requests }) => requests.length === 1);
    const after = await stats(server);
    expect(after.requests).toMatchObject([{ state: "running" }]);
    expect(after.steps - before.steps).toBeLessThan(50);
    expect(running.isOpen).toBe(true);
    running.leave();
  });
});

test("two hundred clients disconnect at once", async () => {
  await using server = await startTestServer();
  const connections = await openMany(server, 200);
  for (const [i, connection] of connections.entries()) {
    await connection.write(requestText(path, { body: { ...endless, stream: i % 2 === 0 } }));
  }
  await until(async () => (await stats(server)).requests.length === 200);
  for (const connection of connections) connection.leave();
  const start = performance.now();
  const next = await server.post(path, { messages, max_tokens: 4 });
  expect(next.status).toBe(200);
  expect(performance.now() - start).toBeLessThan(3000);
  await expectUnharmed(server);
}, 20_000);
