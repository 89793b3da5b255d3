// A server whose model is divided among two processes: it answers as one whose model is whole, and outlives both.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeChatModel } from "../support/chat-model.ts";
import { expectRefusal } from "../support/fault-checks.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// Few blocks and small steps: prompts are chunked, and sequences are preempted.
const args = ["--block-pool-size", "30", "--token-budget", "48", "--max-batch-size", "16"];

let divided: TestServer;
beforeAll(async () => {
  divided = await startTestServer({ args: [...args, "--ranks", "2"] });
  await divided.ready;
}, 60_000);
afterAll(() => divided.stop(), 60_000);

type Choice = { text: string; finish_reason: string };

const schema = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };

/** Greedy and sampled, with penalties, log-probabilities (of the prompt, too), several answers, and a grammar. */
const kinds: Record<string, unknown>[] = [
  { temperature: 0 },
  { temperature: 1, seed: 7, top_p: 0.9 },
  { temperature: 0, repetition_penalty: 1.3, presence_penalty: 0.5 },
  { temperature: 0, logprobs: 2 },
  { temperature: 0, logprobs: 1, echo: true },
  { temperature: 1, seed: 5, n: 2 },
  { temperature: 0, response_format: { type: "json_schema", json_schema: { name: "n", schema } } },
];

const requests = Array.from({ length: 14 }, (_, i) => ({
  // Every second begins as the one before it.
  prompt: `${"The quick brown fox. ".repeat(3 + (i >> 1))}${i}`,
  max_tokens: 60,
  ...kinds[i % kinds.length],
}));

async function answersOf(server: TestServer) {
  const responses = await Promise.all(requests.map((body) => server.post("/v1/completions", body)));
  const bodies = (await Promise.all(responses.map((response) => response.json()))) as {
    choices: Choice[];
  }[];
  return bodies.map(({ choices }) =>
    choices.map(({ text, finish_reason }) => [text, finish_reason]),
  );
}

test("it answers as a server whose model is whole", async () => {
  await using whole = await startTestServer({ args });
  const expected = await answersOf(whole);
  expect(await answersOf(divided)).toEqual(expected);
  // Now prompts hit the prefix cache.
  expect(await answersOf(divided)).toEqual(expected);
  expect(await divided.metric("mlx_serve_preemptions_total")).toBeGreaterThan(0);
}, 60_000);

test("a server whose ranks have some of the layers each answers the same", async () => {
  const whole = await startTestServer({ args });
  const staged = await startTestServer({
    args: [...args, "--ranks", "2", "--parallel", "pipeline", "--layers", "0-0,1-1"],
  });
  try {
    expect(await answersOf(staged)).toEqual(await answersOf(whole));
  } finally {
    await Promise.all([whole.stop(), staged.stop()]);
  }
}, 60_000);

type Ps = {
  models: { blocks: { held: number }; collectives?: { count: number; sent_bytes: number } }[];
  ranks: { rank: number; pid: number; state: string }[];
};

const psOf = async (server = divided) => (await (await server.get("/ps")).json()) as Ps;

test("ps and metrics have its ranks, and what they send each other", async () => {
  const { models, ranks } = await psOf();
  expect(ranks.map(({ rank, state }) => [rank, state])).toEqual([
    [0, "ready"],
    [1, "ready"],
  ]);
  expect(divided.serving.ranks!.status().connections).toBe("shared");
  const { count, sent_bytes } = models[0]!.collectives!;
  expect(count).toBeGreaterThan(0);
  expect(await divided.metric("mlx_serve_collectives_total")).toBe(count);
  expect(await divided.metric("mlx_serve_collective_sent_bytes_total")).toBe(sent_bytes);
  expect(await divided.metric("mlx_serve_collective_seconds_total")).toBeGreaterThan(0);
});

test("an engine that has died is started again, and its ranks with it", async () => {
  const before = await psOf();
  await divided.serving.engine.kill();
  const [[[text]]] = (await answersOf(divided)) as [[[string, string]]];
  expect(text).toBeString();
  const after = await psOf();
  expect(after.ranks.map(({ state }) => state)).toEqual(["ready", "ready"]);
  expect(after.ranks.map(({ pid }) => pid)).not.toContain(before.ranks[0]!.pid);
}, 60_000);

/** Long streams, which all are under way when this returns. */
async function startStreams(count: number): Promise<Promise<string>[]> {
  const before = await divided.metric("mlx_serve_generated_tokens_total");
  const streams = Array.from({ length: count }, async (_, i) => {
    const body = { prompt: `Story ${i}`, max_tokens: 3000, ignore_eos: true, stream: true };
    return (await divided.post("/v1/completions", body)).text();
  });
  while ((await divided.metric("mlx_serve_generated_tokens_total")) < before + 3 * count) {
    await Bun.sleep(20);
  }
  return streams;
}

test.each([
  ["killed", "SIGKILL", /rank 1 \(127\.0\.0\.1\) was ended by signal SIGKILL/],
  ["stopped", "SIGSTOP", /rank 1 \(127\.0\.0\.1\) has stalled/],
] as const)(
  "a rank that is %s is named within 10 s, ends what is under way, and comes back",
  async (_, signal, reason) => {
    const { ranks } = await psOf();
    const streams = await startStreams(16);
    const start = Date.now();
    process.kill(ranks[1]!.pid, signal);
    const texts = await Promise.all(streams);
    expect(Date.now() - start).toBeLessThan(10_000);
    expect(texts.every((text) => text.includes('"error"'))).toBe(true);
    expect(await (await divided.get("/health")).json()).toEqual({
      status: "down",
      reason: expect.stringMatching(reason),
    });
    // It waits for the group.
    const [[text]] = (await answersOf(divided)) as [[string, string][]];
    expect(text![0]).toBeString();
    const after = await psOf();
    expect(after.models[0]!.blocks.held).toBe(0);
    expect(after.ranks.map(({ pid }) => pid)).not.toContain(ranks[1]!.pid);
    expect(await (await divided.get("/health")).json()).toEqual({ status: "ok" });
  },
  60_000,
);

test("ranks that come back with other files are named, and no request waits for them", async () => {
  const model = mkdtempSync(join(tmpdir(), "mlx-serve-ranks-"));
  writeChatModel(model);
  const server = await startTestServer({ model, args: ["--ranks", "2"] });
  const config = join(model, "config.json");
  const own = readFileSync(config, "utf8");
  const health = async () => (await (await server.get("/health")).json()) as object;
  const ask = () => server.post("/v1/completions", { prompt: "x", max_tokens: 2 });
  const loseRank = async () => {
    process.kill((await psOf(server)).ranks[1]!.pid, "SIGKILL");
    while (server.serving.ranks!.status().isFormed) await Bun.sleep(5);
  };
  try {
    writeFileSync(config, JSON.stringify({ ...JSON.parse(own), rope_theta: 20_000 }));
    await loseRank();
    await expectRefusal(await ask(), { status: 500 });
    expect(await health()).toEqual({
      status: "down",
      reason: expect.stringMatching(/^rank [01] \(127\.0\.0\.1\) has different model files/),
    });
    await expectRefusal(await ask(), { status: 503 });
    writeFileSync(config, own);
    await loseRank();
    while ((await ask()).status !== 200) await Bun.sleep(50);
    expect(await health()).toEqual({ status: "ok" });
  } finally {
    await server.stop();
    rmSync(model, { recursive: true });
  }
}, 60_000);
