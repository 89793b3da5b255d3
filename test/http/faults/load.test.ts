// More requests than the server can hold or run at once.
import { expect, test } from "bun:test";
import { expectRefusal, expectUnharmed, SECRET } from "../../support/fault-checks.ts";
import { RawConnection, requestText } from "../../support/raw-http.ts";
import { startTestServer } from "../../support/server.ts";

const chat = "/v1/chat/completions";
const messages = [{ role: "user", content: SECRET }];

test("a request that finds the queue full gets 429 with Retry-After, before tokenization", async () => {
  await using server = await startTestServer({
    args: ["--max-batch-size", "1", "--max-queue", "1"],
  });
  const endless = { messages, max_tokens: 3000, ignore_eos: true, stream: true };
  const { port } = server;
  const connections = [await RawConnection.open(port), await RawConnection.open(port)];
  for (const connection of connections)
    await connection.write(requestText(chat, { body: endless }));
  while ((await server.metric("mlx_serve_http_requests_admitted")) < 2) await Bun.sleep(1);

  const { model, end } = await server.serving.models.use("default");
  end();
  const { tokenizer } = model.text;
  const encode = tokenizer.encode;
  let encoded = 0;
  tokenizer.encode = (...args) => {
    encoded += 1;
    return encode(...args);
  };
  const huge = `${SECRET} `.repeat(100_000);
  for (const stream of [false, true]) {
    for (const [path, body] of [
      [chat, { messages: [{ role: "user", content: huge }] }],
      [chat, { messages, model: "no/such-model" }],
      ["/v1/completions", { prompt: huge }],
      ["/v1/batch/completions", { prompt: [1, 2, 3] }],
      ["/v1/embeddings", { input: huge }],
      ["/v1/rerank", { query: huge, documents: [huge] }],
      ["/v1/score", { text_1: huge, text_2: huge }],
    ] as const) {
      const answer = await server.post(path, { ...body, stream });
      expect(answer.headers.get("retry-after")).toBe("1");
      await expectRefusal(answer, { status: 429, code: "queue_full" });
    }
  }
  expect(encoded).toBe(0);
  // Endpoints without admission still answer.
  expect((await server.get("/health")).status).toBe(200);
  expect((await server.post("/tokenize", { prompt: "a" })).status).toBe(200);
  for (const connection of connections) connection.leave();
  await expectUnharmed(server);
});

test("as many requests as can run and wait are admitted, even if all arrive at once", async () => {
  await using server = await startTestServer({
    args: ["--max-batch-size", "8", "--max-queue", "2"],
  });
  const answers = await Promise.all(
    Array.from({ length: 10 }, () => server.post(chat, { messages, max_tokens: 4 })),
  );
  expect(answers.map(({ status }) => status)).toEqual(Array(10).fill(200));
  await expectUnharmed(server);
});

test("a pool oversubscribed ten times gives each request the same answer as alone", async () => {
  const blocks = 8;
  await using server = await startTestServer({ args: ["--block-pool-size", `${blocks}`] });
  const requests = Array.from({ length: 16 }, (_, i) => ({
    prompt: `${i}: more`,
    max_tokens: 140,
    ignore_eos: true,
    temperature: i % 2,
    seed: i,
  }));
  const ask = async (request: object) => {
    const response = await server.post("/v1/completions", request);
    expect(response.status).toBe(200);
    const { choices, usage } = (await response.json()) as {
      choices: { text: string }[];
      usage: { total_tokens: number };
    };
    return { text: choices[0]!.text, tokens: usage.total_tokens };
  };
  const alone = [];
  for (const request of requests) alone.push(await ask(request));
  const needed = alone.reduce((sum, { tokens }) => sum + Math.ceil(tokens / 32), 0);
  expect(needed).toBeGreaterThanOrEqual(blocks * 10);
  expect(await server.metric("mlx_serve_preemptions_total")).toBe(0);

  const together = await Promise.all(requests.map(ask));
  expect(together).toEqual(alone);
  expect(await server.metric("mlx_serve_preemptions_total")).toBeGreaterThan(0);
  const [stats] = await server.serving.engine.stats();
  expect(stats!.preemptions).toBe(await server.metric("mlx_serve_preemptions_total"));
  await expectUnharmed(server);
}, 60_000);
