// OpenAI's package with the Responses API.
import { describe, expect, test } from "bun:test";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import type {
  Response,
  ResponseCreateParams,
  ResponseCreateParamsNonStreaming,
  ResponseInputItem,
  ResponseStreamEvent,
} from "openai/resources/responses/responses";
import * as z from "zod";
import { withDialect } from "../support/dialect-model.ts";
import { settled, useTestServer } from "../support/use-server.ts";
import { type CallFailure, failureOf, startOpenAi, useClient } from "./client-process.ts";
import { apiKey, useClientServer } from "./client-server.ts";
import { testClient } from "./client-suite.ts";

const tools = [
  { type: "custom" as const, name: "patch", description: "Changes a file." },
  {
    type: "function" as const,
    name: "rain",
    strict: false,
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer" } },
      required: ["city", "days"],
    },
  },
];
/** Thinks, says something and calls both tools. */
const says = [
  ...["I wond", "er.", "</th", "ink>\n\n", "Let me see.\n", '<tool_call>\n{"name": "patch", '],
  ...['"arguments": {"input": "a\\nb"}}\n</tool_call>', '\n<tool_call>\n{"name": "rain", '],
  ...['"arguments": {"city": "Rome", ', '"days": 3}}\n</tool_call>'],
];
const taught =
  'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}{% set enable_thinking = true %}';

const server = useClientServer();
const reciting = useTestServer(withDialect({ taught, says }), settled);

/** Small, so that a random model finishes it soon. */
const Trip = z.object({ city: z.enum(["Paris", "Rome"]), days: z.int().min(1).max(9) });

const clientOf = (baseURL: string) => new OpenAI({ baseURL, apiKey });
const client = () => clientOf(server.baseUrl);
const statuses = () => server.seen.map(({ status }) => status);
const standard = {
  model: "tiny",
  input: "Say something that is new to me.",
  max_output_tokens: 40,
  temperature: 0,
} satisfies ResponseCreateParamsNonStreaming;

describe.each(["node", "Python"] as const)("OpenAI's package for %s", (language) => {
  const process = useClient(startOpenAi, language);

  type Options = {
    url?: string;
    key?: string;
    retries?: number;
    take?: number;
    signal?: AbortSignal;
  };
  const ask = (body: Partial<ResponseCreateParams>, { signal, ...options }: Options = {}) =>
    process.ask(
      {
        url: server.baseUrl,
        key: apiKey,
        ...options,
        method: "responses",
        body: { ...standard, ...body },
      },
      signal,
    );

  test("gets a response, the same one as a stream, and goes on with it", async () => {
    const first = (await ask({})) as Response;
    const text = JSON.stringify(first.output.map(({ type, ...item }) => [type, "content" in item]));
    expect(text).toBe('[["message",true]]');
    const events = (await ask({ stream: true })) as ResponseStreamEvent[];
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, i) => i));
    const last = events.at(-1)!;
    if (last.type !== "response.incomplete") throw new Error(`it ended with ${last.type}`);
    expect(contentOf(last.response)).toEqual(contentOf(first));
    const next = (await ask({ input: "So?", previous_response_id: first.id })) as Response;
    expect(next.usage!.input_tokens).toBeGreaterThan(first.usage!.input_tokens);
  });

  test("gets reasoning and calls of all kinds", async () => {
    const asked = { tools, max_output_tokens: 200 };
    const { output } = (await ask(asked, { url: `${reciting.url}/v1` })) as Response;
    const types = output.map(({ type }) => type).join(", ");
    expect(types).toBe("reasoning, message, custom_tool_call, function_call");
  });

  test("gets what a schema allows, the same as a stream", async () => {
    const format = { type: "json_schema" as const, name: "trip", schema: z.toJSONSchema(Trip) };
    const body = { text: { format }, max_output_tokens: 400 };
    const whole = (await ask(body)) as Response;
    expect(whole.status).toBe("completed");
    Trip.parse(JSON.parse(textOf(whole)));
    const events = (await ask({ ...body, stream: true })) as ResponseStreamEvent[];
    const deltas = events.map((event) =>
      event.type === "response.output_text.delta" ? event.delta : "",
    );
    expect(deltas.join("")).toBe(textOf(whole));
  });

  const refused: [string, () => Promise<unknown>, Partial<CallFailure>][] = [
    [
      "a wrong parameter",
      () => ask({ temperature: 3 }),
      { class: "BadRequestError", status: 400, param: "temperature" },
    ],
    [
      "a wrong parameter of a stream",
      () => ask({ max_output_tokens: -1, stream: true }),
      { class: "BadRequestError", status: 400, param: "max_output_tokens" },
    ],
    [
      "what is not supported",
      () => ask({ background: true }),
      { class: "BadRequestError", status: 400, param: "background" },
    ],
    [
      "a response that is not stored",
      () => ask({ previous_response_id: "resp_0" }),
      { class: "BadRequestError", status: 400, code: "previous_response_not_found" },
    ],
    [
      "an unknown model",
      () => ask({ model: "gpt-5" }),
      { class: "NotFoundError", status: 404, code: "model_not_found" },
    ],
    [
      "a wrong key",
      () => ask({}, { key: "sk-wrong" }),
      { class: "AuthenticationError", status: 401, code: "invalid_api_key" },
    ],
  ];
  test.each(refused)("gets %s refused at once, and does not try again", async (_, call, told) => {
    expect(await failureOf(call())).toMatchObject({ ...told, message: expect.any(String) });
    expect(statuses()).toEqual([told.status!]);
  });

  const limits = (maxTokens = 40) => ({ max_output_tokens: maxTokens });
  testClient(server, {
    async whole({ key, retries, signal, maxTokens } = {}) {
      const options = { ...(key && { key }), ...(retries === 0 && { retries }) };
      const whole = { ...options, ...(signal && { signal }) };
      const response = (await ask(limits(maxTokens), whole)) as Response;
      return { text: textOf(response), finish: response.status };
    },
    async streamed({ signal, maxTokens } = {}) {
      const body = { ...limits(maxTokens), stream: true };
      const events = (await ask(body, signal && { signal })) as ResponseStreamEvent[];
      const last = events.at(-1)!;
      if (last.type === "response.failed") throw last.response.error;
      if (last.type !== "response.incomplete") throw new Error(`it ended with ${last.type}`);
      return { text: textOf(last.response), finish: last.response.status };
    },
    async leave() {
      expect(await ask({ ...limits(4000), stream: true }, { take: 5 })).toHaveLength(5);
    },
    errorOf: (call) =>
      call.then(
        () => failureOf(call),
        (error) => error.failure ?? error,
      ),
    errors: {
      limited: {
        class: "RateLimitError",
        status: 429,
        code: "rate_limit_exceeded",
        retryAfter: "1",
      },
      draining: { class: "InternalServerError", status: 503, retryAfter: "1" },
      broken: { code: "server_error", message: "The answer failed." },
      left: { class: expect.stringMatching(/^(APIUserAbort|Cancelled)Error$/) },
    },
    hasSeeds: false,
    // Without Retry-After it would wait at most half a second.
    comesBackMs: [900, Infinity],
  });
});

const textOf = ({ output }: Response) =>
  output
    .flatMap((item) => (item.type === "message" ? item.content : []))
    .map((part) => (part.type === "output_text" ? part.text : ""))
    .join("");

const contentOf = ({ output }: Response) =>
  output.map((item) => ("content" in item ? item.content : undefined));

describe("OpenAI's package", () => {
  test("gets a response, the same one as a stream", async () => {
    const response = await client().responses.create(standard);
    expect(response.output_text).toMatch(/./s);
    expect([response.status, response.usage?.output_tokens]).toEqual(["incomplete", 40]);
    const stream = client().responses.stream(standard);
    let text = "";
    const numbers: number[] = [];
    for await (const event of stream) {
      numbers.push(event.sequence_number);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    expect(numbers).toEqual(numbers.map((_, i) => i));
    expect(text).toBe(response.output_text);
    expect((await stream.finalResponse()).output_text).toBe(text);
  });

  test("goes on with a stored response, reads and deletes it", async () => {
    const { responses } = client();
    const first = await responses.create(standard);
    const next = { ...standard, input: "And now?", previous_response_id: first.id };
    const second = await responses.create(next);
    expect(second.usage!.input_tokens).toBeGreaterThan(first.usage!.input_tokens);
    expect(second.usage!.input_tokens_details.cached_tokens).toBeGreaterThan(0);
    expect((await responses.retrieve(second.id)).output_text).toBe(second.output_text);
    const items = await Array.fromAsync(responses.inputItems.list(second.id, { limit: 2 }));
    expect(items.map(({ type }) => type)).toEqual(["message", "message", "message"]);
    await responses.delete(first.id);
    for (const call of [responses.retrieve(first.id), responses.delete(first.id)]) {
      expect(await thrownBy(call)).toBeInstanceOf(OpenAI.NotFoundError);
    }
    expect(await thrownBy(responses.create(next))).toMatchObject({
      status: 400,
      code: "previous_response_not_found",
      param: "previous_response_id",
    });
  });

  test("gets reasoning and calls, and goes on with their outputs", async () => {
    const { responses } = clientOf(`${reciting.url}/v1`);
    const asked = { ...standard, tools, max_output_tokens: 200 };
    const response = await responses.create(asked);
    const kinds = ["reasoning", "message", "custom_tool_call", "function_call"];
    const check = ({ output, status }: Response) => {
      expect(output.map(({ type }) => type)).toEqual(kinds as never[]);
      expect(status).toBe("completed");
      for (const item of output) {
        if (item.type === "custom_tool_call") expect(item.input).toBe("a\nb");
        if (item.type !== "function_call") continue;
        expect(JSON.parse(item.arguments)).toEqual({ city: "Rome", days: 3 });
      }
    };
    check(response);
    check(await responses.stream(asked).finalResponse());
    const outputs = response.output.flatMap((item): ResponseInputItem[] => {
      const output = "Done.";
      if (item.type === "custom_tool_call") {
        return [{ type: "custom_tool_call_output", call_id: item.call_id, output }];
      }
      if (item.type !== "function_call") return [];
      return [{ type: "function_call_output", call_id: item.call_id, output }];
    });
    const next = { ...asked, input: outputs, previous_response_id: response.id };
    const stored = await responses.create(next);
    check(stored);
    // The same without the server's memory.
    const input: ResponseInputItem[] = [
      { role: "user", content: asked.input },
      ...(response.output as ResponseInputItem[]),
      ...outputs,
    ];
    const sent = await responses.create({ ...asked, input, store: false });
    check(sent);
    expect(sent.usage!.input_tokens).toBe(stored.usage!.input_tokens);
  });

  test("gets what a schema allows", async () => {
    const { output_parsed } = await client().responses.parse({
      ...standard,
      max_output_tokens: 400,
      text: { format: zodTextFormat(Trip, "trip") },
    });
    expect(Trip.parse(output_parsed)).toEqual(output_parsed!);
  });
});

async function thrownBy(call: PromiseLike<unknown>): Promise<unknown> {
  return await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
}
