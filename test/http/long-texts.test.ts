// Long texts, in full: another client is answered meanwhile.
import { expect, spyOn, test } from "bun:test";
import { EncoderBusyError } from "../../src/text/encoder/encoder.ts";
import { BatchCaller, chatLine } from "../support/batches.ts";
import { expectNoBlock } from "../support/blocking.ts";
import { longTexts } from "../support/long-texts.ts";
import { useTestServer } from "../support/use-server.ts";

const server = useTestServer({
  maxPositions: 2 ** 20,
  args: ["--max-batch-size", "1", "--kv-memory", "600MiB"],
});

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

test("a batch waits for the encoder thread to parse a long line, and answers it", async () => {
  const parse = spyOn(server.serving.encoder, "parse");
  parse.mockImplementationOnce(() => Promise.reject(new EncoderBusyError()));
  const caller = new BatchCaller(server.get);
  const messages = [{ role: "user", content: "x".repeat(2 ** 22) }];
  const { id } = await caller.start([chatLine(1), chatLine(2, { messages }), chatLine(3)]);
  const batch = await caller.until(id);
  expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 2, failed: 1 } });
  parse.mockRestore();
  const [long] = await caller.lines(batch.error_file_id);
  expect(long).toMatchObject({
    custom_id: "chat-2",
    response: { status_code: 400, body: { error: { code: "context_length_exceeded" } } },
  });
}, 30_000);
