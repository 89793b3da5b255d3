// Tokens are counted as the engine generates them: in the metrics, against the key's limit and in the log,
// whether or not they are read.
import { describe, expect, test } from "bun:test";
import type { CompletionResponse } from "../../src/api/openai/completions.ts";
import { keyEntry } from "../support/keys.ts";
import { RawConnection, requestText } from "../support/raw-http.ts";
import { makeHome, startMlxServe } from "../support/serve-process.ts";
import { useTestServer } from "../support/use-server.ts";

const KEY = "sk-mlx-key-of-alice";
const headers = { authorization: `Bearer ${KEY}` };
const path = "/v1/completions";
const endless = { prompt: "Once", max_tokens: 3000, ignore_eos: true };
/** Log-probabilities fill the buffers of a socket. */
const wide = { ...endless, stream: true, logprobs: 20 };

describe("a key's tokens", () => {
  // One token comes back every second.
  const keys = [keyEntry("alice", KEY, { limits: { tokens_per_minute: 60 } })];
  const server = useTestServer(
    { keys: { keys }, args: ["--stream-buffer", "64"] },
    async ({ settled, serving: { ring } }) => {
      await settled();
      ring.reload({ keys: [] });
      ring.reload({ keys });
    },
  );

  const generated = async () => {
    await server.settled();
    return (await server.serving.engine.stats())[0]!.generatedTokens;
  };
  const counted = () => server.metric("mlx_serve_generated_tokens_total");

  /** Tokens that the key has used, less those that have come back. */
  const used = () => {
    const reset = server.serving.ring.find(KEY)!.limiter.headers()["x-ratelimit-reset-tokens"]!;
    const [, hours = 0, minutes = 0, seconds = 0] =
      /^(?:(\d+)h)?(?:(\d+)m)?([\d.]+)s$/.exec(reset) ?? [];
    return Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds);
  };

  /** What the engine generated during `work` is what was counted, with these tokens of prompts. */
  async function expectCounted(promptTokens: number, work: () => Promise<void>): Promise<number> {
    const startMs = performance.now();
    const [made, told] = [await generated(), await counted()];
    await work();
    const count = (await generated()) - made;
    expect((await counted()) - told).toBe(count);
    const secondsAgo = (performance.now() - startMs) / 1000;
    expect(used()).toBeWithin(count + promptTokens - secondsAgo - 1, count + promptTokens + 1);
    return count;
  }

  const ask = async (body: object) => {
    const connection = await RawConnection.open(server.port);
    await connection.write(requestText(path, { body, headers }));
    return connection;
  };

  /** The first answer has so many tokens. */
  const reached = async (count: number) => {
    const first = async () => (await server.serving.engine.stats())[0]!.requests[0];
    while (((await first())?.generated ?? 0) < count) await Bun.sleep(1);
  };

  const running = async (count: number) => {
    while ((await server.metric("mlx_serve_requests_running")) < count) await Bun.sleep(1);
  };

  test("of a stream whose client leaves", async () => {
    const count = await expectCounted(4, async () => {
      const connection = await ask(wide);
      connection.stopReading();
      await reached(50);
      connection.leave();
    });
    expect(count).toBeGreaterThanOrEqual(50);
  });

  test("of n answers that nobody waits for", async () => {
    const count = await expectCounted(4, async () => {
      const connection = await ask({ ...endless, n: 3 });
      await reached(20);
      connection.leave();
    });
    expect(count).toBeGreaterThanOrEqual(60);
  });

  test("of a stream that is not read, and cut", async () => {
    const count = await expectCounted(4, async () => {
      const connection = await ask({ ...wide, n: 8 });
      connection.stopReading();
      await running(8);
      while ((await server.metric("mlx_serve_requests_running")) > 0) await Bun.sleep(5);
      connection.leave();
    });
    expect(count).toBeGreaterThan(64);
  });

  test("of answers that a stop string ended; the client is told of what it got", async () => {
    const body = { ...endless, n: 4, max_tokens: 300, stop: "A", logit_bias: { 65: 3 }, seed: 1 };
    let usage: CompletionResponse["usage"] | undefined;
    const count = await expectCounted(4, async () => {
      const response = await server.post(path, body, { headers });
      ({ usage } = (await response.json()) as CompletionResponse);
    });
    expect(usage!.completion_tokens).toBeLessThan(4 * 300);
    expect(count).toBeGreaterThanOrEqual(usage!.completion_tokens);
  });
});

test("the log's line has the tokens that were generated until the client's leaving took effect", async () => {
  const home = makeHome();
  const server = startMlxServe(["serve", home.model, "--port=0", "--log-format=json"], home.env);
  const [, url] = await server.says(/"url":"([^"]+)"/);
  const connection = await RawConnection.open(Number(new URL(url!).port));
  await connection.write(requestText(path, { body: wide, headers: { "x-request-id": "left" } }));
  connection.stopReading();
  const made = async () => {
    const { models } = (await (await fetch(`${url}/ps`)).json()) as {
      models: { generated_tokens: number }[];
    };
    return models[0]!.generated_tokens;
  };
  while ((await made()) < 100) await Bun.sleep(2);
  connection.leave();
  const [line] = await server.says(/^\{.*"id":"left".*$/m);
  expect(JSON.parse(line)).toMatchObject({
    completionTokens: await made(),
    promptTokens: 4,
    error: "the client has disconnected",
  });
  server.kill("SIGTERM");
  await server.ended;
  home.remove();
}, 60_000);
