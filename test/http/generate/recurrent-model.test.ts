// A hybrid model over sockets: its answers, and what is shown of its states.
import { afterAll, beforeAll, expect, spyOn, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PsResponse } from "../../../src/api/owner/admin.ts";
import { Encoder } from "../../../src/text/encoder/encoder.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { readGolden } from "../../text/corpus.ts";

const folder = mkdtempSync(join(tmpdir(), "hybrid-"));
let server: TestServer;

beforeAll(async () => {
  const script = join(import.meta.dir, "../../../scripts/bench/random-model.ts");
  const { exitCode } = Bun.spawnSync([process.execPath, script, "tiny-hybrid", folder]);
  expect(exitCode).toBe(0);
  const { chatml } = await readGolden<Record<string, string>>("templates.json");
  writeFileSync(join(folder, "chat_template.jinja"), chatml!);
  const args = ["--kv-memory", "64MiB", "--snapshot-memory", "2MiB"];
  server = await startTestServer({ model: folder, args });
});

afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

type Completion = {
  choices: { text: string }[];
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } };
};

const complete = async (prompt: string): Promise<Completion> => {
  const body = { prompt, max_tokens: 40, temperature: 0, ignore_eos: true };
  return (await (await server.post("/v1/completions", body)).json()) as Completion;
};

const chat = async (...messages: { role: string; content: string }[]): Promise<Completion> => {
  const body = { messages, max_tokens: 5, temperature: 0, ignore_eos: true };
  return (await (await server.post("/v1/chat/completions", body)).json()) as Completion;
};

/** The prompt tokens that were computed. */
const computed = ({ usage }: Completion) =>
  usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens;

const slots = async () => {
  const { models } = (await (await server.get("/ps")).json()) as PsResponse;
  return models[0]!.slots!;
};

test("the next turn resumes at a snapshot, and ps and metrics show it", async () => {
  const { total, bytes } = await slots();
  // Three arrays of a delta net in two layers: the last inputs of a convolution, and four heads.
  expect(bytes).toBe(2 * 4 * (3 * (2 * 64 + 128) + 4 * 32 * 32));
  expect(total).toBe(32 + Math.floor(2 ** 21 / bytes));
  const prompt = "x".repeat(500);
  const first = await complete(prompt);
  expect(first.usage.prompt_tokens_details.cached_tokens).toBe(0);
  const again = await complete(prompt);
  expect(again.choices).toEqual(first.choices);
  expect(again.usage.prompt_tokens_details.cached_tokens).toBe(480);
  const { held, snapshots, free } = await slots();
  expect(held).toBe(0);
  expect(snapshots).toBeGreaterThan(0);
  expect(snapshots + free).toBe(total);
  expect(await server.metric("mlx_serve_snapshot_hits_total")).toBe(1);
  expect(await server.metric("mlx_serve_snapshot_misses_total")).toBe(0);
  expect(await server.metric("mlx_serve_state_slots")).toBe(total);
  expect(await server.metric("mlx_serve_snapshot_bytes")).toBe(snapshots * bytes);
  // The beginning is cached, and there is no snapshot at the end of what the two have in common.
  await complete(`${"x".repeat(300)}${"y".repeat(100)}`);
  expect(await server.metric("mlx_serve_snapshot_misses_total")).toBe(1);
});

test("the second chat with a common system prompt computes what is new and at most one block", async () => {
  const system = { role: "system", content: "Be brief. ".repeat(300) };
  const user = (content: string) => ({ role: "user", content });
  const first = await chat(system, user("What is the capital of France?"));
  expect(computed(first)).toBe(first.usage.prompt_tokens);
  const question = "Who wrote it, when, and what did others think of it at the time? ".repeat(5);
  const second = await chat(system, user(question));
  expect(second.usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(3000 - 32);
  const ending = "<|im_end|>\n<|im_start|>assistant\n";
  expect(computed(second)).toBeLessThanOrEqual(question.length + ending.length + 32);
  // So does one whose last message is another than before.
  const turns = [system, user(question), { role: "assistant", content: "No. ".repeat(100) }];
  await chat(...turns, user("Why?"));
  const again = await chat(...turns, user("Is it so?"));
  expect(computed(again)).toBeLessThanOrEqual("Is it so?".length + ending.length + 32);
});

test("chats are rendered for their heads only where a model has recurrent layers", async () => {
  using encode = spyOn(Encoder.prototype, "encode");
  const asked = { messages: [{ role: "user", content: "Hi" }], max_tokens: 1 };
  const plain = await startTestServer();
  try {
    for (const each of [server, plain]) {
      expect((await each.post("/v1/chat/completions", asked)).status).toBe(200);
    }
  } finally {
    await plain.stop();
  }
  const works = encode.mock.calls.map(([, work]) => work);
  expect(works).toMatchObject([{ wantsHeads: true }, { wantsHeads: false }]);
});
