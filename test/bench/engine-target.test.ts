import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { backend } from "../../ffi/native.ts";
import { openEngineTarget } from "../../src/bench/engine-target.ts";
import type { Target } from "../../src/bench/target.ts";
import { RefusedError } from "../../src/engine/client.ts";
import { writeChatModel } from "../support/chat-model.ts";

const folder = mkdtempSync(join(tmpdir(), "engine-target-"));
const source = { kind: "folder", path: join(folder, "tiny"), name: "tiny" } as const;
let target: Target;
beforeAll(async () => {
  writeChatModel(source.path);
  target = await openEngineTarget({ source, chat: false, maxBatch: 4 });
});
afterAll(async () => {
  await target.close();
  rmSync(folder, { recursive: true });
});

test("the engine tells what it runs on", () => {
  expect(target.about).toEqual({
    kind: "engine",
    model: "tiny",
    backend: backend(),
    device: expect.any(String),
    mlxVersion: expect.stringMatching(/^\d+\.\d+/),
  });
});

test("every token of an answer has its time, and the answer ends at the most tokens", async () => {
  let begun = 0;
  const sample = await target.send({ prompt: "tide", maxTokens: 40 }, () => (begun += 1));
  expect(sample.arrivalsMs).toHaveLength(40);
  expect(sample).toMatchObject({ tokens: 40, promptTokens: 4, cachedTokens: 0 });
  expect(begun).toBe(1);
  const times = [sample.startMs, ...sample.arrivalsMs, sample.endMs];
  expect(times).toEqual(times.toSorted((a, b) => a - b));
});

test("a beginning that is known is told as such", async () => {
  const prompt = "0123456789".repeat(10);
  await target.send({ prompt, maxTokens: 1 });
  const { cachedTokens } = await target.send({ prompt, maxTokens: 1 });
  expect(cachedTokens).toBe(96);
});

test("memory is MLX's and the process's", async () => {
  const { activeBytes, rssBytes } = await target.memory();
  expect(activeBytes).toBeGreaterThan(100_000);
  expect(rssBytes).toBeGreaterThan(activeBytes!);
});

test("a chat goes through the template", async () => {
  const chat = await openEngineTarget({ source, chat: true, maxBatch: 1 });
  const { promptTokens } = await chat.send({ prompt: "tide", maxTokens: 1 });
  await chat.close();
  expect(promptTokens).toBeGreaterThan(10);
});

test("a request that cannot be answered is an error", async () => {
  const send = target.send({ prompt: "x".repeat(5000), maxTokens: 1 });
  await expect(send).rejects.toThrow(RefusedError);
});
