// The engine fails: the requests of the failed step get an error; others and later ones are not affected.
import { afterAll, afterEach, beforeAll, describe, expect, mock, spyOn, test } from "bun:test";
import { EngineClient } from "../../../src/engine/client.ts";
import type { KeyFile } from "../../../src/keys/key-file.ts";
import { workerEntry } from "../../../src/worker-entry.ts";
import { expectError, expectRefusal, expectUnharmed, SECRET } from "../../support/fault-checks.ts";
import { DEADLY_TOKEN, REFUSED_TOKEN } from "../../support/fault-tokens.ts";
import { events, startTestServer, type TestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const useWorker = (entry: URL) =>
  mock.module("../../../src/worker-entry.ts", () => ({ workerEntry: entry }));

const path = "/v1/completions";
const request = { prompt: SECRET, max_tokens: 24, temperature: 0, ignore_eos: true };
const endless = { ...request, max_tokens: 3000 };

/** The answer's text. */
async function ask(server: TestServer, body: object = request): Promise<string> {
  const response = await server.post(path, body);
  expect(response.status).toBe(200);
  const { choices } = (await response.json()) as { choices: { text: string }[] };
  return choices[0]!.text;
}

/** A stream that has started. */
async function begun(server: TestServer): Promise<Response> {
  const response = await server.post(path, { ...endless, stream: true });
  expect(response.status).toBe(200);
  return response;
}

/** The stream ended with an error event. */
async function expectBroken(stream: Response): Promise<void> {
  const all = await events(stream);
  expect(all.at(-1)).toBe("[DONE]");
  expectError(all.at(-2));
}

describe("when the engine fails", () => {
  let server: TestServer;
  const original = workerEntry;
  beforeAll(async () => {
    useWorker(new URL("../../support/fault-worker.ts", import.meta.url));
    server = await startTestServer();
  });
  afterEach(() => expectUnharmed(server));
  afterAll(async () => {
    await server.stop();
    useWorker(original);
  });

  const health = async () => {
    const response = await server.get("/health");
    const { status, reason } = (await response.json()) as { status: string; reason?: string };
    return { code: response.status, status, reason };
  };

  test("in a step, only the requests of that step get an error", async () => {
    const expected = await ask(server);
    const streams = [await begun(server), await begun(server)];
    const whole = server.post(path, endless);
    while ((await server.metric("mlx_serve_requests_running")) < 3) await Bun.sleep(1);
    const refused = await server.post(path, { ...request, prompt: [REFUSED_TOKEN, 65] });
    await expectRefusal(refused, { status: 500 });
    await expectRefusal(await whole, { status: 500 });
    for (const stream of streams) await expectBroken(stream);
    expect(await health()).toMatchObject({ code: 200, status: "ok" });
    expect(await ask(server)).toBe(expected);
    // An error before the first event is an HTTP status.
    const early = await server.post(path, { ...request, prompt: [REFUSED_TOKEN], stream: true });
    await expectRefusal(early, { status: 500 });
  });

  test.each([
    ["is killed", (by: TestServer) => by.serving.engine.kill()],
    ["throws", (by: TestServer) => by.post(path, { ...request, prompt: [DEADLY_TOKEN] })],
  ])(
    "and its Worker %s, all requests get an error, and a new Worker is started",
    async (_, end) => {
      const expected = await ask(server);
      const streams = [await begun(server), await begun(server)];
      const whole = server.post(path, endless);
      const queued = Array.from({ length: 40 }, () => server.post(path, endless));
      while ((await server.metric("mlx_serve_requests_waiting")) < 5) await Bun.sleep(1);
      await end(server);
      expect(await health()).toMatchObject({ code: 503, reason: expect.any(String) });
      for (const stream of streams) await expectBroken(stream);
      for (const each of [whole, ...queued]) await expectRefusal(await each, { status: 500 });
      // A new request waits for the model, and is answered.
      expect(await ask(server)).toBe(expected);
      expect(await health()).toEqual({ code: 200, status: "ok", reason: undefined });
    },
  );
});

describe("when the logits are NaN", () => {
  const NUMBERLESS = 310;
  const server = useTestServer({ numberlessToken: NUMBERLESS, args: ["--block-pool-size", "16"] });

  test("that request fails, and the batch goes on", async () => {
    const asked = Array.from({ length: 6 }, (_, i) => ({ ...request, prompt: `${i}: ${SECRET}` }));
    const alone: string[] = [];
    for (const each of asked) alone.push(await ask(server, each));
    const broken = [
      { ...request, prompt: [NUMBERLESS] },
      { ...request, prompt: [65, NUMBERLESS, 66], n: 2 },
      // Long enough to fill whole blocks.
      { ...request, prompt: [...Array(70).fill(65), NUMBERLESS, ...Array(70).fill(65)] },
    ];
    const [together, failed] = await Promise.all([
      Promise.all(asked.map((each) => ask(server, each))),
      Promise.all(
        broken.flatMap((each) => [
          server.post(path, each),
          server.post(path, { ...each, stream: true }),
        ]),
      ),
    ]);
    for (const each of failed) await expectRefusal(each, { status: 500 });
    expect(together).toEqual(alone);
    await server.settled();
    // Its blocks are reused, without its NaN values.
    const after = await Promise.all(asked.map((each) => ask(server, each)));
    expect(after).toEqual(alone);
    await ask(server, { ...request, prompt: "a".repeat(400), max_tokens: 1 });
  });

  test("its blocks never become prefix cache hits", async () => {
    const beginning = Array(64).fill(66);
    const good = { ...request, prompt: [...beginning, 67] };
    const expected = await ask(server, { ...good, cache_salt: "another's" });
    for (const prompt of [
      [...beginning, NUMBERLESS],
      [66, NUMBERLESS, ...beginning],
    ]) {
      await expectRefusal(await server.post(path, { ...request, prompt }), { status: 500 });
    }
    expect(await ask(server, good)).toBe(expected);
  });
});

test("a server that cannot start ends its engine", async () => {
  const start = spyOn(EngineClient, "start");
  const keys = {
    get keys(): KeyFile["keys"] {
      throw new Error("a fault");
    },
  };
  await expect(startTestServer({ keys })).rejects.toThrow("a fault");
  const engine = await (start.mock.results[0]!.value as Promise<EngineClient>);
  expect(engine.alive).toBe(false);
  start.mockRestore();
});
