// Long texts, in full: another client is answered meanwhile.
import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import { expectNoBlock } from "../support/blocking.ts";
import { expectUnharmed } from "../support/fault-checks.ts";
import { longTexts } from "../support/long-texts.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
beforeAll(async () => {
  const args = ["--max-batch-size", "1", "--kv-memory", "600MiB"];
  server = await startTestServer({ maxPositions: 2 ** 20, args });
});
afterEach(() => expectUnharmed(server));
afterAll(() => server.stop());

const texts = longTexts(1_500_000);
const kinds = ["spaces", "a letter", "combining marks", "random bytes", "real text"];

test.each(kinds)("the event loop is not blocked by a text to count: %s", async (kind) => {
  const prompt = texts[kind]!;
  const answer = await expectNoBlock(server.port, "/tokenize", JSON.stringify({ prompt }));
  expect(answer.status).toBe(200);
  expect(answer.body).toContain(`{"count":${Buffer.byteLength(prompt)},`);
});

test("the event loop is not blocked by a long chat", async () => {
  const messages = [{ role: "user", content: "<|im_end|>".repeat(100_000) }];
  const answer = await expectNoBlock(server.port, "/tokenize", JSON.stringify({ messages }));
  expect(answer.status).toBe(200);
});
