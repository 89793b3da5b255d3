// Streams of every API whose answer fails at any point: an HTTP error before the first event, and after it an
// event that says so, with which the stream ends.
import { expect, spyOn, test } from "bun:test";
import { AnthropicError } from "../../../src/api/anthropic/messages.ts";
import { ErrorResponse } from "../../../src/api/error.ts";
import {
  OllamaChatResponse,
  OllamaError,
  OllamaGenerateResponse,
} from "../../../src/api/ollama/generate.ts";
import { ChatChunk } from "../../../src/api/openai/chat.ts";
import { CompletionChunk } from "../../../src/api/openai/completions.ts";
import { Answers, FailedAnswerError } from "../../../src/serve/answers.ts";
import * as anthropic from "../../support/anthropic-events.ts";
import * as responses from "../../support/response-events.ts";
import { useTestServer } from "../../support/use-server.ts";

const server = useTestServer();

type Api = {
  path: string;
  body: object;
  /** Of an error before the first event. */
  error: { parse(value: unknown): unknown };
  /** Throws unless this is a whole stream, or one that failed. */
  check(text: string): "whole" | "failed";
};

const messages = [{ role: "user", content: "Hi" }];

/** OpenAI's older streams end with [DONE], after an error too. */
const dataEvents = (schema: { parse(value: unknown): unknown }) => (text: string) => {
  const events = text.split("\n\n").slice(0, -1);
  expect(events.pop()).toBe("data: [DONE]");
  const values = events.map((event) => JSON.parse(event.replace(/^data: /, "")));
  const isFailed = "error" in values.at(-1);
  if (isFailed) ErrorResponse.strict().parse(values.pop());
  for (const value of values) schema.parse(value);
  return isFailed ? "failed" : "whole";
};

type Line = { done: boolean };

/** Ollama's streams end with a line that is done, or with an error. */
const lines = (schema: { parse(value: unknown): Line }) => (text: string) => {
  const values = text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
  const isFailed = "error" in values.at(-1);
  if (isFailed) OllamaError.strict().parse(values.pop());
  const done = values.map((value) => schema.parse(value).done);
  expect(done.indexOf(true)).toBe(isFailed ? -1 : values.length - 1);
  return isFailed ? "failed" : "whole";
};

const apis: Record<string, Api> = {
  "chat completions": {
    path: "/v1/chat/completions",
    body: { messages, max_tokens: 12, temperature: 0, n: 2 },
    error: ErrorResponse.strict(),
    check: dataEvents(ChatChunk),
  },
  "text completions": {
    path: "/v1/completions",
    body: { prompt: "Hi", max_tokens: 12, temperature: 0, n: 2 },
    error: ErrorResponse.strict(),
    check: dataEvents(CompletionChunk),
  },
  responses: {
    path: "/v1/responses",
    body: { input: "Hi", max_output_tokens: 12, temperature: 0 },
    error: ErrorResponse.strict(),
    check: (text) =>
      responses.checkOrder(responses.eventsIn(text)) === "failed" ? "failed" : "whole",
  },
  "Anthropic's messages": {
    path: "/v1/messages",
    body: { messages, max_tokens: 12, temperature: 0 },
    error: AnthropicError.strict(),
    check: (text) => {
      const order = anthropic.checkOrder(anthropic.eventsIn(text));
      expect(order).not.toBe("begun");
      return order === "failed" ? "failed" : "whole";
    },
  },
  "Ollama's chats": {
    path: "/api/chat",
    body: { messages, options: { num_predict: 12, temperature: 0 } },
    error: OllamaError.strict(),
    check: lines(OllamaChatResponse.strict()),
  },
  "Ollama's prompts": {
    path: "/api/generate",
    body: { prompt: "Hi", options: { num_predict: 12, temperature: 0 } },
    error: OllamaError.strict(),
    check: lines(OllamaGenerateResponse.strict()),
  },
};

test.each(Object.entries(apis))("%s that fail at any point", async (_, api) => {
  const { path, body, error, check } = api;
  const read = Answers.prototype.read;
  for (let reads = 0; ; reads++) {
    let left = reads;
    const spy = spyOn(Answers.prototype, "read").mockImplementation(function (this: Answers) {
      if (left-- === 0) throw new FailedAnswerError("the answer could not be computed");
      return read.call(this);
    });
    const log = spyOn(server.serving.log, "error").mockImplementation(() => {});
    const response = await server.post(path, { ...body, stream: true });
    const text = await response.text();
    spy.mockRestore();
    log.mockRestore();
    // Ollama's streams begin with the first text, the others with an event that says so.
    const isBegun = path.startsWith("/api/") ? response.status !== 500 : reads > 0;
    if (reads === 0 || !isBegun) {
      expect(response.status).toBe(500);
      error.parse(JSON.parse(text));
      continue;
    }
    expect(response.status).toBe(200);
    if (check(text) === "failed") continue;
    // The stream was over before it could fail.
    expect(reads).toBeGreaterThan(3);
    break;
  }
  await server.settled();
});
