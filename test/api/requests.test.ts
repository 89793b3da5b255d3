// How requests are parsed. test/http/frame/errors.test.ts has how they are rejected.
import { describe, expect, test } from "bun:test";
import { ChatRequest } from "../../src/api/openai/chat.ts";
import { CompletionRequest } from "../../src/api/openai/completions.ts";
import { EmbeddingRequest } from "../../src/api/openai/embeddings.ts";
import { DetokenizeRequest, TokenizeRequest } from "../../src/api/openai/tokenize.ts";

const messages = [{ role: "user", content: "hello" }];
const chat = (fields: object) => ChatRequest.parse({ messages, ...fields });
const completion = (fields: object) => CompletionRequest.parse({ prompt: "hello", ...fields });
const takes = (fields: object) => ChatRequest.safeParse({ messages, ...fields }).success;

describe("a chat", () => {
  const presets = {
    model: "default",
    n: 1,
    stream: false,
    min_tokens: 0,
    ignore_eos: false,
    return_token_ids: false,
    logprobs: false,
    continue_final_message: false,
    parallel_tool_calls: true,
  };

  test("needs nothing but messages", () => {
    expect(chat({})).toEqual({ messages, ...presets } as ChatRequest);
  });

  test("accepts null for absent fields", () => {
    const names = Object.keys(ChatRequest.shape).filter((name) => name !== "messages");
    const nulls = Object.fromEntries(names.map((name) => [name, null]));
    const read = Object.entries(chat(nulls)).filter(
      ([, value]) => (value ?? undefined) !== undefined,
    );
    expect(Object.fromEntries(read) as object).toEqual({ messages, ...presets });
  });

  test("keeps what was asked for", () => {
    const asked = {
      model: "org/name",
      temperature: 0,
      top_p: 1,
      top_k: -1,
      min_p: 0.1,
      n: 128,
      max_tokens: 5,
      max_completion_tokens: 5,
      seed: -7,
      stop: ["a", "b"],
      stream: true,
      stream_options: { include_usage: true },
      logit_bias: { "0": -100, "50256": 100 },
      frequency_penalty: -2,
      presence_penalty: 2,
      repetition_penalty: 1.1,
      min_tokens: 5,
      ignore_eos: true,
      stop_token_ids: [0, 7],
      user: "someone",
      service_tier: "flex",
      cache_salt: "salt",
      return_token_ids: true,
      logprobs: true,
      top_logprobs: 20,
      reasoning_effort: "xhigh",
      chat_template_kwargs: { enable_thinking: false },
      add_generation_prompt: false,
      continue_final_message: true,
      response_format: { type: "json_object" },
      tools: [{ type: "function", function: { name: "f", strict: true, parameters: {} } }],
      tool_choice: { type: "function", function: { name: "f" } },
      parallel_tool_calls: false,
    };
    expect(chat(asked) as object).toEqual({ messages, ...asked });
  });

  test("accepts one stop string, several or none", () => {
    expect(chat({ stop: "end" }).stop).toEqual(["end"]);
    expect(chat({ stop: [] }).stop).toEqual([]);
    expect(chat({ stop: null }).stop).toBeUndefined();
  });

  test("may have messages of every role", () => {
    const call = { id: "1", type: "function", function: { name: "f", arguments: "{}" } };
    const all = [
      { role: "system", content: "s" },
      { role: "developer", content: [{ type: "text", text: "d" }] },
      { role: "user", content: "u", name: "me" },
      { role: "assistant", content: "a", reasoning_content: "r", refusal: "no" },
      { role: "assistant", tool_calls: [call] },
      { role: "tool", tool_call_id: "1", content: [{ type: "text", text: "t" }] },
    ];
    expect(chat({ messages: all }).messages as object[]).toEqual(all);
    const withNulls = { role: "assistant", content: null, refusal: null, tool_calls: [call] };
    expect(chat({ messages: [withNulls] }).messages).toHaveLength(1);
  });

  test("ignores unknown fields", () => {
    const odd = JSON.parse('{"__proto__":{"n":7},"constructor":{"n":7},"watermark":1}');
    const read = chat({ ...odd, messages: [{ ...messages[0], mood: "good" }] });
    expect(read).toEqual({ messages, ...presets } as object as ChatRequest);
  });

  test("keeps objects of the client's own as they were sent, whatever their keys are called", () => {
    const text = '{"__proto__":{"polluted":1},"constructor":{"polluted":1},"toString":2}';
    const sent = () => JSON.parse(text);
    const read = chat({
      chat_template_kwargs: sent(),
      metadata: sent(),
      prompt_cache_options: sent(),
      tools: [{ type: "function", function: { name: "__proto__", parameters: sent() } }],
      response_format: { type: "json_schema", json_schema: { name: "s", schema: sent() } },
      structured_outputs: { json: sent() },
      guided_json: sent(),
    });
    const kept = [
      read.chat_template_kwargs,
      read.metadata,
      read.prompt_cache_options,
      read.tools![0]!.function.parameters,
      read.response_format?.type === "json_schema" && read.response_format.json_schema.schema,
      read.structured_outputs!.json,
      read.guided_json,
    ];
    for (const each of kept) {
      expect(JSON.stringify(each)).toBe(text);
      expect(Object.getPrototypeOf(each)).toBe(Object.prototype);
    }
    expect("polluted" in {}).toBeFalse();
  });

  test("accepts fields without effect, and rejects unsupported ones", () => {
    expect(
      takes({ metadata: { a: "b" }, safety_identifier: "a", prompt_cache_key: "k" }),
    ).toBeTrue();
    expect(takes({ store: false, modalities: ["text"], verbosity: "medium" })).toBeTrue();
    expect(takes({ tools: [], tool_choice: "auto", parallel_tool_calls: true })).toBeTrue();
    expect(takes({ response_format: { type: "text" } })).toBeTrue();
    expect(takes({ stream: true, stream_options: { include_obfuscation: true } })).toBeFalse();
    expect(takes({ stream: true, stream_options: { continuous_usage_stats: true } })).toBeFalse();
  });

  test("may ask for structured output in OpenAI's fields and in vLLM's", () => {
    const schema = { type: "object", properties: { a: { type: "null" } } };
    const forms = {
      response_format: {
        type: "json_schema",
        json_schema: { name: "x", schema, strict: true, description: "d" },
      },
      structured_outputs: {
        ...{ json: schema, json_object: true, regex: "a", choice: ["a"], grammar: "b" },
      },
      guided_json: true,
      guided_regex: "a+",
      guided_choice: ["a", "b"],
      guided_grammar: 'root ::= "a"',
    };
    expect(chat(forms)).toMatchObject(forms as object);
    expect(completion(forms)).toMatchObject(forms as object);
    expect(chat({ guided_json: JSON.stringify(schema) }).guided_json).toBe(JSON.stringify(schema));
    expect(takes({ response_format: { type: "json_schema" } })).toBeFalse();
    expect(takes({ guided_choice: Array(1025).fill("a") })).toBeFalse();
    expect(takes({ guided_json: [] })).toBeFalse();
  });

  test("may have tools, of which one may be named", () => {
    const tool = (name: string, more = {}) => ({ type: "function", function: { name, ...more } });
    const parameters = { type: "object", properties: {} };
    const asked = { tools: [tool("f", { parameters, strict: true }), tool("g.h-1")] };
    expect(chat(asked).tools as object[]).toEqual([
      tool("f", { parameters, strict: true }),
      tool("g.h-1", { strict: false }),
    ]);
    for (const tool_choice of ["none", "auto", "required", tool("g.h-1")]) {
      expect(chat({ ...asked, tool_choice }).tool_choice as unknown).toEqual(tool_choice);
    }
    for (const tool_choice of ["any", tool("h"), { type: "function" }, tool("")]) {
      expect(takes({ ...asked, tool_choice })).toBeFalse();
    }
    expect(takes({ tool_choice: "required" })).toBeFalse();
    expect(takes({ tools: [tool("f"), tool("f")] })).toBeFalse();
    expect(takes({ tools: [tool("a b")] })).toBeFalse();
    expect(takes({ tools: [{ ...tool("f"), type: "web_search" }] })).toBeFalse();
    expect(takes({ tools: Array.from({ length: 129 }, (_, i) => tool(`f${i}`)) })).toBeFalse();
  });

  test("has no contradicting fields", () => {
    expect(takes({ max_tokens: 5, max_completion_tokens: 6 })).toBeFalse();
    expect(takes({ min_tokens: 6, max_completion_tokens: 5 })).toBeFalse();
    expect(takes({ add_generation_prompt: true, continue_final_message: true })).toBeFalse();
    expect(takes({ top_logprobs: 0 })).toBeTrue();
  });

  test("with a million errors is rejected as fast as with one", () => {
    const parts = Array(4000).fill(0);
    const many = Array(250).fill({ role: "user", content: parts });
    const start = performance.now();
    const { error } = ChatRequest.safeParse({ messages: many });
    expect(error?.issues.length).toBeLessThan(100);
    expect(performance.now() - start).toBeLessThan(250);
  });
});

describe("a completion", () => {
  test("has one prompt or many, as text or as tokens", () => {
    const promptsOf = (prompt: unknown) => completion({ prompt }).prompt;
    expect(promptsOf("a")).toEqual(["a"]);
    expect(promptsOf(["a", "b"])).toEqual(["a", "b"]);
    expect(promptsOf([1, 2])).toEqual([[1, 2]]);
    expect(promptsOf([[1, 2], [0]])).toEqual([[1, 2], [0]]);
    expect(promptsOf(Array(128).fill("a"))).toHaveLength(128);
    expect(promptsOf(Array(1000).fill(1))).toHaveLength(1);
    expect(promptsOf([4294967295])).toEqual([[4294967295]]);
  });

  test("has no default max_tokens, and 0 only with echo", () => {
    expect(completion({}).max_tokens).toBeUndefined();
    expect(CompletionRequest.safeParse({ prompt: "a", max_tokens: 0 }).success).toBeFalse();
    expect(completion({ max_tokens: 0, echo: true })).toMatchObject({ max_tokens: 0, echo: true });
  });

  test("accepts legacy fields without effect", () => {
    expect(completion({ suffix: "", best_of: 3, n: 3, logprobs: 0 })).toMatchObject({
      logprobs: 0,
    });
    expect(completion({ suffix: null, best_of: null, logprobs: null }).logprobs).toBeUndefined();
    expect(CompletionRequest.safeParse({ prompt: "a", best_of: 1 }).success).toBeTrue();
  });
});

test("an embedding accepts the same inputs as a completion, and more of them", () => {
  expect(EmbeddingRequest.parse({ input: Array(2048).fill("a") }).input).toHaveLength(2048);
  expect(EmbeddingRequest.safeParse({ input: Array(2049).fill("a") }).success).toBeFalse();
  expect(EmbeddingRequest.parse({ input: [1, 2], encoding_format: null })).toEqual({
    input: [[1, 2]],
    model: "default",
    encoding_format: "float",
  });
  expect(EmbeddingRequest.safeParse({ input: "a", dimensions: 0 }).success).toBeFalse();
  expect(EmbeddingRequest.safeParse({ input: "a", encoding_format: "int8" }).success).toBeFalse();
});

describe("the tokenizer", () => {
  test("is given a text or a chat, and not both", () => {
    expect(TokenizeRequest.parse({ prompt: "" })).toMatchObject({ prompt: "" });
    expect(TokenizeRequest.parse({ messages })).toMatchObject({ messages } as object);
    expect(TokenizeRequest.safeParse({}).success).toBeFalse();
    expect(TokenizeRequest.safeParse({ prompt: "a", messages }).success).toBeFalse();
  });

  test("takes any number of tokens back", () => {
    expect(DetokenizeRequest.parse({ tokens: [1, 2] }).tokens).toEqual([1, 2]);
    expect(DetokenizeRequest.parse({ tokens: [] }).tokens).toEqual([]);
    for (const tokens of [[-1], ["1"], [1.5], "1", null, undefined]) {
      expect(DetokenizeRequest.safeParse({ tokens }).success).toBeFalse();
    }
  });
});
