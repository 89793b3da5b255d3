// What is said of a prompt that is too long: both numbers, and why the context is shorter than the model's own.
import { expect, test } from "bun:test";
import { startTestServer } from "../support/server.ts";

/** The message to a prompt of so many tokens, as the server with these flags says it. */
async function told(args: string[], ...prompts: (string | number[])[]): Promise<string[]> {
  const server = await startTestServer({ args });
  const messages = [];
  for (const prompt of prompts) {
    const response = await server.post("/v1/completions", { prompt, max_tokens: 1 });
    const { error } = (await response.json()) as { error: { message: string; code: string } };
    expect([response.status, error.code]).toEqual([400, "context_length_exceeded"]);
    messages.push(error.message);
  }
  await server.stop();
  return messages;
}

const of = (length: number, count: string) =>
  `The model's maximum context length is ${length} tokens, and the prompt has ${count}`;

test("of the model's own length, with the number of tokens as far as they were counted", async () => {
  expect(await told([], "a".repeat(5000), Array(4096).fill(65), "a".repeat(9000))).toEqual([
    `${of(4096, "5000")}.`,
    `${of(4096, "4096")}.`,
    `${of(4096, "more than 8192")}.`,
  ]);
});

test("of a length that a flag has cut", async () => {
  expect(await told(["--max-model-len", "512"], "a".repeat(600))).toEqual([
    `${of(512, "600")}; --max-model-len cuts the model's own length of 4096.`,
  ]);
});

test("of a length that the memory for KV blocks has cut", async () => {
  const cut =
    "the memory for KV blocks cuts the model's own length of 4096 (--kv-memory, --max-model-len auto)";
  expect(await told(["--block-pool-size", "4"], "a".repeat(200))).toEqual([
    `${of(128, "200")}; ${cut}.`,
  ]);
});
