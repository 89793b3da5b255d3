import { afterAll, beforeAll, expect, test } from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, type ModelMessage, streamText } from "ai";
import type { ChatCompletion, ChatCompletionChunk } from "openai/resources";
import { defaultModelPath } from "../../ffi/native.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { type ClientProcess, startOpenAi } from "./client-process.ts";

let server: TestServer;
let url: string;
let [node, python]: ClientProcess[] = [];
beforeAll(async () => {
  server = await startTestServer({ model: defaultModelPath() });
  url = `${server.url}/v1`;
  [node, python] = [startOpenAi("node"), startOpenAi("Python")];
}, 300_000);
afterAll(async () => {
  await Promise.all([node?.stop(), python?.stop(), server.stop()]);
});

const first = { role: "user", content: "What is the capital of France?" } as const;
const conversation = [
  first,
  { role: "assistant", content: "The capital of France is Paris." },
  { role: "user", content: "And of Italy?" },
] as const;
const [max_tokens, temperature] = [16, 0];

const openAi = (client: ClientProcess | undefined, stream: boolean) => {
  const messages = stream ? [...conversation] : [first];
  const body = { model: "default", messages, max_tokens, temperature, stream };
  return client!.ask({ url, key: "none", method: "chat", body });
};

const aiSdk = (messages: ModelMessage[]) => ({
  model: createOpenAICompatible({ name: "default", baseURL: url })("default"),
  messages,
  maxOutputTokens: max_tokens,
  temperature,
});

const langChain = () =>
  new ChatOpenAI({
    model: "default",
    apiKey: "none",
    configuration: { baseURL: url },
    maxTokens: max_tokens,
    temperature,
  });

test("the default model tells every client of Paris", async () => {
  const whole = (answer: unknown) => (answer as ChatCompletion).choices[0]!.message.content;
  const answers = await Promise.all([
    openAi(node, false).then(whole),
    openAi(python, false).then(whole),
    generateText(aiSdk([first])).then(({ text }) => text),
    langChain()
      .invoke([first])
      .then(({ text }) => text),
  ]);
  for (const answer of answers) expect(answer).toContain("Paris");
  await server.settled();
}, 60_000);

test("the default model streams Rome to every client that goes on to ask about Italy", async () => {
  const joined = (chunks: unknown) =>
    (chunks as ChatCompletionChunk[]).map(({ choices }) => choices[0]?.delta.content).join("");
  const answers = await Promise.all([
    openAi(node, true).then(joined),
    openAi(python, true).then(joined),
    streamText(aiSdk([...conversation])).text,
    langChain()
      .stream([...conversation])
      .then((chunks) => Array.fromAsync(chunks, ({ text }) => text))
      .then((texts) => texts.join("")),
  ]);
  for (const answer of answers) expect(answer).toContain("Rome");
  await server.settled();
}, 60_000);
