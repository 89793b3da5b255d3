// Anthropic's packages for node and Python.
import { describe, expect, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import type {
  Message,
  MessageCreateParamsNonStreaming,
} from "@anthropic-ai/sdk/resources/messages";
import * as z from "zod";
import { checkOrder, messageOf, type StreamEvent } from "../support/anthropic-events.ts";
import { settled, useTestServer } from "../support/use-server.ts";
import { type CallFailure, failureOf, startAnthropic, useClient } from "./client-process.ts";
import { apiKey, useClientServer } from "./client-server.ts";
import { type Asked, testClient } from "./client-suite.ts";
import { now, rome, said, thought, weather, withThinkingModel } from "./thinking-model.ts";

const tools = [now, weather].map(({ parameters, ...each }) => ({
  ...each,
  input_schema: parameters,
}));

const server = useClientServer();
const reciting = useTestServer(withThinkingModel(), settled);

/** Small, so that a random model finishes it soon. */
const Trip = z.object({ city: z.enum(["Paris", "Rome"]), days: z.int().min(1).max(9) });

const statuses = () => server.seen.map(({ status }) => status);
const content = "Say something that is new to me.";
const thinking = { type: "enabled", budget_tokens: 1024 } as const;

describe.each(["node", "Python"] as const)("Anthropic's package for %s", (language) => {
  const client = useClient(startAnthropic, language);

  type Body = Partial<MessageCreateParamsNonStreaming> & { temperature?: number };
  type Options = {
    key?: string;
    retries?: number;
    take?: number;
    signal?: AbortSignal;
    url?: string;
  };
  const messages = [{ role: "user" as const, content }];
  const standard = { model: "tiny", messages, max_tokens: 40, temperature: 0 };
  const calling = ({ key = apiKey, url = server.url, retries, take }: Options) => ({
    url,
    key,
    ...(retries !== undefined && { retries }),
    ...(take !== undefined && { take }),
  });
  const ask = async (body: Body = {}, options: Options = {}) =>
    (await client.ask(
      { method: "messages", body: { ...standard, ...body }, ...calling(options) },
      options.signal,
    )) as Message;
  const askStream = async (body: Body = {}, options: Options = {}) =>
    (await client.ask(
      { method: "messages", body: { ...standard, ...body, stream: true }, ...calling(options) },
      options.signal,
    )) as StreamEvent[];
  const finalMessage = async (body: Body = {}, options: Options = {}) =>
    (await client.ask({
      method: "final message",
      body: { ...standard, ...body },
      ...calling(options),
    })) as Message;
  const textOf = (message: { content: readonly object[] }) =>
    message.content.map((block) => ("text" in block ? block.text : "")).join("");

  test("gets a message, the same one as a stream", async () => {
    const message = await ask();
    expect(plain(message)).toMatchObject({
      type: "message",
      role: "assistant",
      model: "tiny",
      content: [{ type: "text", text: expect.stringMatching(/./s) }],
      stop_reason: "max_tokens",
      stop_sequence: null,
      usage: { output_tokens: 40 },
    });
    const events = await askStream();
    expect(checkOrder(events)).toBe("whole");
    expect(textOf(messageOf(events))).toBe(textOf(message));
    const final = await finalMessage();
    expect([textOf(final), final.stop_reason]).toEqual([textOf(message), "max_tokens"]);
    expect(final.usage.output_tokens).toBe(40);
  });

  test("gets an answer that ends before a stop sequence", async () => {
    const whole = textOf(await ask());
    const stop = whole.slice(9, 12);
    const stopped = await ask({ stop_sequences: [stop] });
    expect(textOf(stopped)).toBe(whole.slice(0, whole.indexOf(stop)));
    expect(stopped).toMatchObject({ stop_reason: "stop_sequence", stop_sequence: stop });
    expect(await finalMessage({ stop_sequences: [stop] })).toMatchObject({
      stop_reason: "stop_sequence",
      stop_sequence: stop,
    });
  });

  test("counts the tokens that the prompt has", async () => {
    const body = { model: "tiny", messages: standard.messages, tools, system: "Hm." };
    const counted = await client.ask({ method: "count tokens", body, ...calling({}) });
    const { usage } = await ask({ tools, system: "Hm.", max_tokens: 1 });
    const real = usage.input_tokens + (usage.cache_read_input_tokens ?? 0);
    expect(counted).toMatchObject({ input_tokens: real });
  });

  test("thinks, calls two tools at once and goes on with their results", async () => {
    const options = { url: reciting.url };
    const body = { tools, thinking, max_tokens: 2000 };
    const message = await ask(body, options);
    const blocks = [
      { type: "thinking", thinking: thought, signature: expect.stringMatching(/^.{20,}$/) },
      { type: "text", text: said },
      { type: "tool_use", name: "now", input: {} },
      { type: "tool_use", name: "get_weather", input: rome },
    ];
    expect(plain(message)).toMatchObject({ content: blocks, stop_reason: "tool_use" } as never);
    const final = await finalMessage(body, options);
    expect(plain(final)).toMatchObject({ content: blocks, stop_reason: "tool_use" } as never);
    const results = final.content.flatMap((block) =>
      block.type === "tool_use"
        ? [{ type: "tool_result" as const, tool_use_id: block.id, content: "Sunny." }]
        : [],
    );
    const messages = [
      ...standard.messages,
      { role: "assistant" as const, content: final.content },
      { role: "user" as const, content: results },
    ];
    const next = await ask({ ...body, messages }, options);
    expect(next.stop_reason).toBe("tool_use");
    // What came before is not computed again.
    expect(next.usage.cache_read_input_tokens).toBeGreaterThan(0);
  });

  test("gets documents that its schema allows, the same one as a stream", async () => {
    const format = { type: "json_schema", schema: z.toJSONSchema(Trip) } as const;
    const body = { output_config: { format }, max_tokens: 400 };
    const message = await ask(body);
    expect(message.stop_reason).toBe("end_turn");
    Trip.parse(JSON.parse(textOf(message)));
    expect(textOf(messageOf(await askStream(body)))).toBe(textOf(message));
    expect(textOf(await finalMessage(body))).toBe(textOf(message));
  });

  const refused: [string, () => Promise<unknown>, Partial<CallFailure>][] = [
    [
      "a wrong parameter",
      () => ask({ temperature: 3 }),
      { class: "BadRequestError", status: 400, type: "invalid_request_error" },
    ],
    [
      "a wrong parameter of a stream",
      () => askStream({ max_tokens: -1 }),
      { class: "BadRequestError", status: 400, type: "invalid_request_error" },
    ],
    [
      "an unknown model",
      () => ask({ model: "org/unknown" }),
      { class: "NotFoundError", status: 404, type: "not_found_error" },
    ],
    [
      "a wrong key",
      () => ask({}, { key: "sk-wrong" }),
      { class: "AuthenticationError", status: 401, type: "authentication_error" },
    ],
  ];
  test.each(refused)("gets %s refused at once, and does not try again", async (_, call, told) => {
    expect(await failureOf(call())).toMatchObject({
      ...told,
      message: expect.any(String),
      retryAfter: null,
      requestId: expect.stringMatching(/^req-/),
    });
    expect(statuses()).toEqual([told.status!]);
  });

  const bodyOf = ({ maxTokens = 40, stop }: Asked) => ({
    max_tokens: maxTokens,
    ...(stop && { stop_sequences: [stop] }),
  });
  testClient(server, {
    async whole({ key, retries, signal, ...asked } = {}) {
      const options = { ...(key && { key }), ...(retries === 0 && { retries }) };
      const message = await ask(bodyOf(asked), { ...options, ...(signal && { signal }) });
      return { text: textOf(message), finish: message.stop_reason };
    },
    async streamed({ signal, ...asked } = {}) {
      const events = await askStream(bodyOf(asked), signal && { signal });
      const end = events.find((event) => event.type === "message_delta");
      return { text: textOf(messageOf(events)), finish: end?.delta.stop_reason };
    },
    leave: async () => expect(await askStream({ max_tokens: 4000 }, { take: 3 })).toHaveLength(3),
    errorOf: failureOf,
    errors: {
      limited: { class: "RateLimitError", status: 429, type: "rate_limit_error", retryAfter: "1" },
      draining: {
        class: expect.stringMatching(/^(Overloaded|InternalServer)Error$/),
        status: 529,
        type: "overloaded_error",
      },
      broken: { type: "api_error", message: "The answer failed." },
      left: { class: expect.stringMatching(/^(APIUserAbort|Cancelled)Error$/) },
    },
    stopped: "stop_sequence",
    draining: 529,
    hasSeeds: false,
    // Without Retry-After it would wait at most half a second.
    comesBackMs: [900, Infinity],
  });
});

test("Anthropic's helper reads a document", async () => {
  // It takes limits of numbers out of a schema.
  const City = Trip.pick({ city: true });
  const client = new Anthropic({ baseURL: server.url, apiKey });
  const { parsed_output } = await client.messages.parse({
    model: "tiny",
    messages: [{ role: "user", content }],
    max_tokens: 400,
    output_config: { format: zodOutputFormat(City) },
  });
  expect(City.parse(parsed_output)).toEqual(parsed_output!);
});

/** Matchers of Bun write into what they match. */
const plain = <T>(value: T): T => structuredClone(value);
