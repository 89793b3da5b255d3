import { describe, expect, test } from "bun:test";
import { ZodError, z } from "zod";
import { ChatRequest } from "../../../src/api/openai/chat.ts";
import { CompletionRequest } from "../../../src/api/openai/completions.ts";
import { EngineError, RefusedError } from "../../../src/engine/client.ts";
import {
  apiErrorOf,
  badRequest,
  ClientGoneError,
  errorResponse,
  forbidden,
  notFound,
  tooManyRequests,
  unauthorized,
  unavailable,
} from "../../../src/http/frame/errors.ts";
import { ModelNotFoundError } from "../../../src/hub/hub-error.ts";
import { TemplateError } from "../../../src/text/template/template.ts";

const secret = "xyzzy-plugh";
const hello = [{ role: "user", content: "hello" }];

/** The error for a request with this JSON. */
function refusal(schema: z.ZodType, json: string) {
  const { error } = schema.safeParse(JSON.parse(json));
  if (!error) throw new Error("it was taken");
  const { status, body } = apiErrorOf(error);
  expect(status).toBe(400);
  expect(body.error.type).toBe("invalid_request_error");
  return body.error;
}

/** A field's value as JSON, the parameter in the error, and a part of its message. */
type Fault = [field: string, json: string, param: string, says: string];

const samplingFaults: Fault[] = [
  ["temperature", "1e309", "temperature", "number"],
  ["temperature", "-1", "temperature", ">=0"],
  ["temperature", "2.5", "temperature", "<=2"],
  ["temperature", `"${secret}"`, "temperature", "expected number"],
  ["top_p", "0", "top_p", ">0"],
  ["top_p", "2", "top_p", "<=1"],
  ["top_k", "-7", "top_k", ">=-1"],
  ["top_k", "1.5", "top_k", "int"],
  ["min_p", "1.5", "min_p", "<=1"],
  ["n", "0", "n", ">=1"],
  ["n", "1e9", "n", "<=128"],
  ["n", "1.5", "n", "int"],
  ["max_tokens", "-1", "max_tokens", ">="],
  ["max_tokens", "1.5", "max_tokens", "int"],
  ["max_tokens", "9223372036854775808", "max_tokens", "int"],
  ["max_tokens", `"${secret}"`, "max_tokens", "expected number"],
  ["min_tokens", "-5", "min_tokens", ">=0"],
  ["frequency_penalty", "2.5", "frequency_penalty", "<=2"],
  ["presence_penalty", "-2.5", "presence_penalty", ">=-2"],
  ["repetition_penalty", "0", "repetition_penalty", ">=0.01"],
  ["repetition_penalty", "11", "repetition_penalty", "<=10"],
  ["seed", "0.5", "seed", "int"],
  ["seed", `"${secret}"`, "seed", "expected number"],
  ["seed", "18446744073709551615", "seed", "int"],
  ["stop", "7", "stop", "a string or an array of strings"],
  ["stop", `{"a":"${secret}"}`, "stop", "a string or an array of strings"],
  ["stop", '""', "stop", ">=1 characters"],
  ["stop", `["a", 7]`, "stop.1", "expected string"],
  ["stop", `["a", null]`, "stop.1", "expected string"],
  ["stop", `["a", ""]`, "stop.1", ">=1 characters"],
  ["stop", JSON.stringify(Array(10_000).fill(secret)), "stop", "at most 16"],
  ["stop", JSON.stringify(secret.repeat(100_000)), "stop", "<=1024 characters"],
  ["stop", JSON.stringify(["a", secret.repeat(100_000)]), "stop.1", "<=1024 characters"],
  ["stop_token_ids", "[-7]", "stop_token_ids.0", ">=0"],
  ["stop_token_ids", "[1, 2.5]", "stop_token_ids.1", "int"],
  ["stop_token_ids", "[4294967296]", "stop_token_ids.0", "<=4294967295"],
  ["stop_token_ids", `"${secret}"`, "stop_token_ids", "expected array"],
  ["stop_token_ids", JSON.stringify(Array(65).fill(1)), "stop_token_ids", "at most 64"],
  ["logit_bias", "[]", "logit_bias", "an object of token ids and numbers"],
  ["logit_bias", `{"${secret}":1}`, "logit_bias", "an object of token ids and numbers"],
  ...[
    ...["__proto__", "constructor", "toString", "hasOwnProperty", ""],
    ...["-7", "1.5", "01", " 1", "1 ", "+1", "1e3", "0x1", "\u0661", "9007199254740993"],
  ].map((key): Fault => {
    const json = `{"7":1,${JSON.stringify(key)}:5}`;
    return ["logit_bias", json, "logit_bias", "an object of token ids and numbers"];
  }),
  ["logit_bias", '{"7":101}', "logit_bias.7", "<=100"],
  ["logit_bias", `{"7":"${secret}"}`, "logit_bias.7", "expected number"],
  [
    "logit_bias",
    JSON.stringify(Object.fromEntries(Array.from({ length: 1025 }, (_, i) => [i, 1]))),
    "logit_bias",
    "at most 1024",
  ],
  ["model", JSON.stringify(secret.repeat(100)), "model", "<=512 characters"],
  ["model", "7", "model", "expected string"],
  ["stream", `"${secret}"`, "stream", "expected boolean"],
  ["stream_options", '{"include_usage":true}', "stream_options", "when stream is true"],
  ["service_tier", `"${secret}"`, "service_tier", "expected one of"],
  ["cache_salt", JSON.stringify(secret.repeat(100)), "cache_salt", "<=256 characters"],
];

const textParts = "a string or an array of text parts";
const chatFaults: Fault[] = [
  ...samplingFaults,
  ["max_tokens", "0", "max_tokens", ">=1"],
  ["max_completion_tokens", "0", "max_completion_tokens", ">=1"],
  ["top_logprobs", "21", "top_logprobs", "<=20"],
  ["top_logprobs", "5", "top_logprobs", "when logprobs is true"],
  ["logprobs", "5", "logprobs", "expected boolean"],
  ["messages", "[]", "messages", ">=1"],
  ["messages", "null", "messages", "expected array"],
  ["messages", `"${secret}"`, "messages", "expected array"],
  ["messages", `["${secret}"]`, "messages.0", "an object whose role is"],
  ["messages", "[null]", "messages.0", "an object whose role is"],
  ["messages", "[{}]", "messages.0.role", "whose role is system"],
  ["messages", `[{"role":"${secret}","content":"a"}]`, "messages.0.role", "whose role is system"],
  ["messages", '[{"role":"user"}]', "messages.0.content", textParts],
  ["messages", '[{"role":"user","content":null}]', "messages.0.content", textParts],
  ["messages", '[{"role":"user","content":[]}]', "messages.0.content", ">=1"],
  ["messages", '[{"role":"user","content":7}]', "messages.0.content", textParts],
  [
    "messages",
    `[{"role":"user","content":["${secret}"]}]`,
    "messages.0.content.0",
    "expected object",
  ],
  [
    "messages",
    `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"${secret}"}}]}]`,
    "messages.0.content.0.type",
    "only text",
  ],
  [
    "messages",
    `[{"role":"user","content":[{"type":"text","text":7}]}]`,
    "messages.0.content.0.text",
    "expected string",
  ],
  ["messages", '[{"role":"assistant","content":null}]', "messages.0.content", "no tool_calls"],
  ["messages", '[{"role":"assistant","tool_calls":[]}]', "messages.0.content", "no tool_calls"],
  [
    "messages",
    `[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":"${secret}"}}}]}]`,
    "messages.0.tool_calls.0.function.arguments",
    "expected string",
  ],
  ["messages", '[{"role":"tool","content":"a"}]', "messages.0.tool_call_id", "Missing"],
  ["messages", JSON.stringify(Array(20_000).fill(hello[0])), "messages", "at most 16384"],
  [
    "response_format",
    `{"type":"${secret}"}`,
    "response_format.type",
    "text, json_object or json_schema",
  ],
  ["response_format", '{"type":"json_schema"}', "response_format.json_schema", "Missing"],
  ["tools", `[{"${secret}":1}]`, "tools.0.type", "only functions"],
  ["tool_choice", `"required"`, "tool_choice", "only allowed with tools"],
  ["tool_choice", `"${secret}"`, "tool_choice", "expected one of"],
  ["modalities", '["text","audio"]', "modalities", "at most 1"],
  ["modalities", '["audio"]', "modalities.0", "only text"],
  ["store", "true", "store", "not stored"],
  ["verbosity", `"high"`, "verbosity", "only medium"],
  ["reasoning_effort", `"${secret}"`, "reasoning_effort", "expected one of"],
  ["chat_template_kwargs", `"${secret}"`, "chat_template_kwargs", "expected object"],
  ...["audio", "prediction", "web_search_options", "functions", "function_call", "moderation"].map(
    (field): Fault => [field, `{"a":"${secret}"}`, field, "not supported"],
  ),
];

const kinds = "a string, strings, token ids or arrays of token ids";

const completionFaults: Fault[] = [
  ...samplingFaults,
  ["max_tokens", "0", "max_tokens", "echo"],
  ["prompt", "null", "prompt", kinds],
  ["prompt", "7", "prompt", kinds],
  ["prompt", `{"a":"${secret}"}`, "prompt", kinds],
  ["prompt", '""', "prompt", "not empty"],
  ["prompt", "[]", "prompt", "not empty"],
  ["prompt", '["a", ""]', "prompt.1", "not empty"],
  ["prompt", "[[1], []]", "prompt.1", "not empty"],
  ["prompt", `["a", 7]`, "prompt.1", "one kind"],
  ["prompt", `[1, "${secret}"]`, "prompt.1", "a token id"],
  ["prompt", "[-7]", "prompt.0", "a token id"],
  ["prompt", "[1, 2.5]", "prompt.1", "a token id"],
  ["prompt", "[4294967296]", "prompt.0", "a token id"],
  ["prompt", "[[1], [2, -7]]", "prompt.1.1", "a token id"],
  ["prompt", "[null]", "prompt.0", kinds],
  ["prompt", JSON.stringify(Array(129).fill(secret)), "prompt", "at most 128"],
  ["logprobs", "21", "logprobs", "<=20"],
  ["logprobs", "true", "logprobs", "expected number"],
  ["best_of", "2", "best_of", "the same as n"],
  ["suffix", `"${secret}"`, "suffix", "not supported"],
  ["echo", `"${secret}"`, "echo", "expected boolean"],
];

/** What the message must not quote, if the value is recognizable. */
const offending = (json: string) => (/^"?[\d.e-]{2,}"?$/.test(json) ? [secret, json] : [secret]);

describe.each([
  ["a chat", ChatRequest, { messages: hello }, chatFaults],
  ["a completion", CompletionRequest, { prompt: "hello" }, completionFaults],
] as const)("%s", (_, schema, whole, faults) => {
  for (const [field, json, param, says] of faults) {
    test(`whose ${field} is ${json.slice(0, 60)} is refused for ${param}`, () => {
      const fields = Object.entries(whole).filter(([name]) => name !== field);
      const others = JSON.stringify(Object.fromEntries(fields)).slice(1);
      const comma = others === "}" ? "" : ",";
      const error = refusal(schema, `{"${field}":${json}${comma}${others}`);
      expect(error.param).toBe(param);
      expect(error.message).toContain(`'${param}'`);
      expect(error.message).toContain(says);
      expect(error.message.length).toBeLessThan(200);
      for (const value of offending(json)) expect(error.message).not.toContain(value);
    });
  }
});

describe("a rejected request", () => {
  test("is told which parameter is missing", () => {
    expect(refusal(ChatRequest, "{}")).toEqual({
      message: "Missing required parameter: 'messages'.",
      type: "invalid_request_error",
      param: "messages",
      code: "missing_required_parameter",
    });
    expect(refusal(CompletionRequest, "{}").message).toBe("Missing required parameter: 'prompt'.");
  });

  test("gets a code for the kind of error", () => {
    const codeOf = (fields: object) =>
      refusal(ChatRequest, JSON.stringify({ messages: hello, ...fields })).code;
    expect(codeOf({ temperature: "a" })).toBe("invalid_type");
    expect(codeOf({ temperature: 3 })).toBe("invalid_value");
    expect(codeOf({ prediction: {} })).toBe("unsupported_parameter");
  });

  test("names no parameter if the whole body is invalid", () => {
    const { error } = z.object({}).safeParse([]);
    expect(apiErrorOf(error).body).toEqual({
      error: {
        message: "Invalid body: expected object, received array.",
        type: "invalid_request_error",
        param: null,
        code: "invalid_type",
      },
    });
  });
});

describe("an internal error", () => {
  const summary = (error: unknown): Record<string, unknown> => {
    const { status, type, code, param, headers } = apiErrorOf(error, "prompt");
    return { status, type, code, param, ...headers };
  };

  test("has OpenAI's type and code", () => {
    const invalid = { type: "invalid_request_error", code: undefined, param: undefined };
    const bad = { ...invalid, status: 400, code: "bad", param: "n" };
    expect(summary(badRequest("n", "no", "bad"))).toEqual(bad);
    expect(summary(unauthorized("no"))).toEqual({
      ...invalid,
      status: 401,
      code: "invalid_api_key",
      "WWW-Authenticate": "Bearer",
    });
    expect(summary(forbidden("no"))).toEqual({ ...invalid, status: 403 });
    expect(summary(notFound("no"))).toEqual({ ...invalid, status: 404 });
    expect(summary(tooManyRequests(1.2, "no", { type: "tokens" }))).toEqual({
      status: 429,
      type: "tokens",
      code: "rate_limit_exceeded",
      param: undefined,
      "Retry-After": "2",
    });
    expect(summary(unavailable(0, "no", "draining"))).toEqual({
      status: 503,
      type: "service_unavailable_error",
      code: "draining",
      param: undefined,
      "Retry-After": "1",
    });
  });

  test("of the engine maps to the client's or the server's status", () => {
    expect(summary(new RefusedError("queue_full"))).toEqual({
      status: 429,
      type: "requests",
      code: "queue_full",
      param: undefined,
      "Retry-After": "1",
    });
    const invalid = { status: 400, type: "invalid_request_error", param: "prompt" };
    const tooLong = { ...invalid, code: "context_length_exceeded" };
    expect(summary(new RefusedError("too_long"))).toEqual(tooLong);
    expect(summary(new RefusedError("bad_token"))).toEqual({ ...invalid, code: "invalid_value" });
    expect(summary(new EngineError("the engine is down"))).toMatchObject({ status: 503 });
    expect(apiErrorOf(new RefusedError("too_long")).param).toBe("messages");
  });

  test("of a chat template is the request's if the template says so", () => {
    const raised = apiErrorOf(new TemplateError("raised", "roles must alternate"));
    expect(raised).toMatchObject({ status: 400, param: "messages" });
    expect(raised.message).toEndWith("roles must alternate");
    const failed = apiErrorOf(new TemplateError("failed", `cannot read ${secret}`));
    expect(failed.status).toBe(400);
    expect(failed.message).not.toContain(secret);
    for (const fault of ["limit", "syntax"] as const) {
      const error = apiErrorOf(new TemplateError(fault, secret));
      expect(error).toMatchObject({ status: 500, type: "server_error" });
      expect(error.message).not.toContain(secret);
    }
  });

  test("about a missing model does not reveal paths", () => {
    const error = apiErrorOf(new ModelNotFoundError(`/home/${secret}: no such file`));
    expect(error).toMatchObject({ status: 404, code: "model_not_found", param: "model" });
    expect(error.message).not.toContain(secret);
  });

  test("that is unexpected reveals nothing", async () => {
    for (const error of [new TypeError(`at /home/${secret}.ts: 0x7fff`), secret, undefined]) {
      const response = errorResponse(error);
      expect(response.status).toBe(500);
      expect(await response.json()).toEqual({
        error: { message: "Internal error.", type: "server_error", param: null, code: null },
      });
    }
  });

  test("after the client has disconnected is 499", () => {
    expect(apiErrorOf(new ClientGoneError()).status).toBe(499);
  });
});

test("an error becomes a response with its headers", async () => {
  const response = errorResponse(tooManyRequests(3, "Slow down."));
  expect(response.status).toBe(429);
  expect(response.headers.get("retry-after")).toBe("3");
  expect(response.headers.get("content-type")).toStartWith("application/json");
  expect(await response.json()).toEqual({
    error: { message: "Slow down.", type: "requests", param: null, code: "rate_limit_exceeded" },
  });
});

test("a custom zod error is supported", () => {
  const error = new ZodError([{ code: "custom", path: ["a", 0], message: "no good", input: 1 }]);
  expect(apiErrorOf(error)).toMatchObject({ param: "a.0", message: "Invalid 'a.0': no good." });
});
