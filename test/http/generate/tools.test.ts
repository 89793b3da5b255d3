// Tool calls over HTTP: with a random model, whose calls are valid only because a grammar constrains them, and
// with models that recite a given text, in the formats of several families.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { Ajv2020 } from "ajv/dist/2020";
import type { ChatChunk, ChatResponse } from "../../../src/api/openai/chat.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { type Dialect, editJson, encoded, withDialect } from "../../support/dialect-model.ts";
import { expectRefusal, SECRET } from "../../support/fault-checks.ts";
import { events, type TestServer } from "../../support/server.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

// Threads for grammars are started in each of these servers.
setDefaultTimeout(20_000);
const path = "/v1/chat/completions";
const ajv = new Ajv2020();
const messages = [{ role: "user", content: "What is it like?" }];

const schemas: Record<string, object> = {
  get_weather: {
    type: "object",
    properties: {
      city: { type: "string", minLength: 1, maxLength: 6 },
      days: { type: "integer", minimum: 1, maximum: 14 },
      unit: { enum: ["celsius", "kelvin"] },
    },
    required: ["city", "days"],
    additionalProperties: false,
  },
  "set.light-1": {
    type: "object",
    properties: {
      on: { type: "boolean" },
      rooms: { type: "array", items: { enum: ["hall"] }, maxItems: 2 },
    },
    required: ["on", "rooms"],
    additionalProperties: false,
  },
  now: { type: "object", properties: {}, additionalProperties: false },
};
const tools = [
  { type: "function", function: { name: "get_weather", parameters: schemas.get_weather } },
  {
    type: "function",
    function: {
      name: "set.light-1",
      description: "Or off.",
      parameters: schemas["set.light-1"],
      strict: true,
    },
  },
  { type: "function", function: { name: "now" } },
];

type Call = { name: string; arguments: string };
type Message = {
  content: string | null;
  reasoning: string | undefined;
  calls: Call[];
  finish: string;
};

function callsOf(calls: ChatResponse["choices"][number]["message"]["tool_calls"] = []): Call[] {
  for (const { id, type } of calls) {
    expect(type).toBe("function");
    expect(id).toMatch(/^(call_)?[a-zA-Z0-9]{9,}$|^functions\.[\w.-]+:\d+$/);
  }
  expect(new Set(calls.map(({ id }) => id)).size).toBe(calls.length);
  return calls.map((call) => call.function);
}

/** Each choice's message. */
async function ask(server: TestServer, fields: object): Promise<Message[]> {
  const response = await server.post(path, { messages, max_tokens: 300, ...fields });
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  const { choices } = JSON.parse(text) as ChatResponse;
  return choices.map(({ message, finish_reason }) => {
    const { content, reasoning_content: reasoning, tool_calls } = message;
    expect(tool_calls?.length).not.toBe(0);
    return { content, reasoning, calls: callsOf(tool_calls), finish: finish_reason };
  });
}

/** The same from a stream, whose every event is checked. */
async function askStreamed(server: TestServer, fields: object): Promise<Message[]> {
  const body = { messages, max_tokens: 300, ...fields, stream: true };
  const response = await server.post(path, body);
  expect(response.status).toBe(200);
  const all = await events(response);
  expect(all.pop()).toBe("[DONE]");
  const choices = (all as ChatChunk[]).flatMap((chunk) => chunk.choices);
  const answers = Map.groupBy(choices, ({ index }) => index);
  return Array.from(answers.values(), (own) => {
    expect(own.shift()!.delta).toEqual({ role: "assistant", content: "" });
    expect(own.at(-1)!.delta).toEqual({});
    const finish = own.map((each) => each.finish_reason ?? "").join("");
    const message = { content: "", reasoning: "", finish };
    const calls: NonNullable<ChatResponse["choices"][number]["message"]["tool_calls"]>[number][] =
      [];
    for (const { delta } of own) {
      message.content += delta.content ?? "";
      message.reasoning += delta.reasoning_content ?? "";
      for (const { index, id, type, function: part } of delta.tool_calls ?? []) {
        const isFirst = index === calls.length;
        // Id, type and name come once, in the first event.
        expect([id !== undefined, type, part.name !== undefined]).toEqual([
          isFirst,
          isFirst ? "function" : undefined,
          isFirst,
        ]);
        if (isFirst)
          calls.push({ id: id!, type: type!, function: { name: part.name!, arguments: "" } });
        calls[index]!.function.arguments += part.arguments;
      }
    }
    return {
      finish: message.finish,
      calls: callsOf(calls),
      content: message.content === "" && calls.length > 0 ? null : message.content,
      reasoning: message.reasoning === "" ? undefined : message.reasoning,
    };
  });
}

/** The text of the prompt. */
async function promptOf(server: TestServer, fields: object): Promise<string> {
  const asked = { messages, max_tokens: 1, return_token_ids: true, ...fields };
  const answer = (await (await server.post(path, asked)).json()) as ChatResponse;
  const tokens = answer.prompt_token_ids;
  const told = await (await server.post("/detokenize", { tokens })).json();
  return (told as { prompt: string }).prompt;
}

function expectValid(call: Call): void {
  const isValid = ajv.compile(schemas[call.name]!);
  expect([call, isValid(JSON.parse(call.arguments))]).toEqual([call, true]);
}

describe("a model whose template does not support tools", () => {
  const server = useTestServer({
    model(folder) {
      writeChatModel(folder);
      editJson(join(folder, "tokenizer.json"), ({ model, ...rest }) => {
        const { vocab, ...bpe } = model as { vocab: object };
        const framing = Object.fromEntries(frames.map((text, i) => [encoded(text), FRAMES + i]));
        return { ...rest, model: { ...bpe, vocab: { ...vocab, ...framing } } };
      });
    },
  });
  const both = async (fields: object) => {
    const whole = await ask(server, fields);
    expect(await askStreamed(server, fields)).toEqual(whole);
    return whole;
  };

  /** Tokens for the markup of a call, so that it does not take a hundred of them. */
  const FRAMES = 260;
  const frames = ['<tool_call>\n{"name": "', '", "arguments": {', "}\n</tool_call>"];
  /** A newline separates two calls. */
  const more = { logit_bias: { 10: 1, 103: 2, 260: 20, 261: 20, 262: 20 } };

  test("makes only valid calls if calls are required", async () => {
    const answers = await both({ tools, tool_choice: "required", n: 10, seed: 1, ...more });
    for (const { content, calls, finish } of answers) {
      expect([content, finish]).toEqual([null, "tool_calls"]);
      for (const call of calls) expectValid(call);
    }
    const names = answers.flatMap(({ calls }) => calls.map(({ name }) => name));
    expect(new Set(names)).toEqual(new Set(Object.keys(schemas)));
    expect(names.length).toBeGreaterThan(answers.length);
  });

  test("makes at most one call without parallel_tool_calls", async () => {
    const only = { tools, tool_choice: "required", parallel_tool_calls: false, ...more };
    for (const { calls } of await both({ ...only, n: 6, seed: 1 })) {
      expect(calls).toHaveLength(1);
      expectValid(calls[0]!);
    }
  });

  test("calls the function that tool_choice names", async () => {
    for (const name of Object.keys(schemas)) {
      const tool_choice = { type: "function", function: { name } };
      for (const { calls, finish } of await both({ tools, tool_choice, n: 2, seed: 1, ...more })) {
        expect([calls.map((call) => call.name), finish]).toEqual([[name], "tool_calls"]);
        expectValid(calls[0]!);
      }
    }
  });

  test("makes no calls if it has no tools", async () => {
    const plain = await both({ seed: 1, max_tokens: 20 });
    expect(plain).toMatchObject([{ calls: [] }]);
    for (const fields of [
      { tools, tool_choice: "none" },
      { tools: [] },
      { tools: [], tool_choice: "auto" },
    ]) {
      expect(await both({ ...fields, seed: 1, max_tokens: 20 })).toEqual(plain);
    }
  });

  test("may answer with text if tool_choice is auto", async () => {
    const [answer] = await both({ tools, seed: 1, max_tokens: 40 });
    expect(answer).toMatchObject({ calls: [], content: expect.stringMatching(/./s) });
    expect(await ask(server, { tools, tool_choice: "auto", seed: 1, max_tokens: 40 })).toEqual([
      answer!,
    ]);
  });

  test("is cut off by max_tokens, and no markup is left in the content", async () => {
    const byBytes = { logit_bias: { 260: -100, 261: -100, 262: -100 } };
    // One call of one function without arguments: the grammar leaves no choice.
    const only = { tools: tools.slice(2), tool_choice: "required", parallel_tool_calls: false };
    const asked = { ...only, ...byBytes };
    const text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>';
    const named = text.indexOf('",') + 1;
    const whole = { name: "now", arguments: "{}" };
    for (const [max_tokens, calls] of [
      [1, []],
      [named - 1, []],
      [named, [{ name: "now", arguments: "" }]],
      [text.indexOf("{}") + 1, [{ name: "now", arguments: "{" }]],
      [text.length - 1, [whole]],
      [text.length, [whole]],
    ] as const) {
      const content = calls.length > 0 ? null : "";
      expect(await both({ ...asked, max_tokens })).toEqual([
        { content, reasoning: undefined, calls: [...calls], finish: "length" },
      ]);
    }
    expect(await both({ ...asked, max_tokens: text.length + 1 })).toMatchObject([
      { content: null, calls: [whole], finish: "tool_calls" },
    ]);
  });

  test("answers in the response format, or with calls", async () => {
    const response_format = {
      type: "json_schema",
      json_schema: {
        name: "x",
        schema: { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] },
      },
    };
    const asked = { tools, response_format, seed: 1, n: 4 };
    for (const { content, ...rest } of await both({ ...asked, logit_bias: { 123: 20 } })) {
      expect([JSON.parse(content!), rest]).toEqual([
        { ok: expect.any(Boolean) },
        { calls: [], finish: "stop", reasoning: undefined },
      ]);
    }
    const calling = { ...asked, logit_bias: { ...more.logit_bias, 10: 3 } };
    const answers = await both({ ...calling, max_tokens: 100 });
    expect(answers.some(({ calls }) => calls.length > 1)).toBeTrue();
    for (const { calls, finish } of answers) {
      // max_tokens may cut off the last one.
      const whole = finish === "length" ? calls.slice(0, -1) : calls;
      for (const call of whole) expectValid(call);
    }
    const stream = { messages, ...calling, max_tokens: 100, stream: true };
    const chunks = (await events(await server.post(path, stream))).slice(0, -1) as ChatChunk[];
    const deltas = chunks.flatMap(({ choices }) => choices[0]!.delta.tool_calls ?? []);
    const count = answers.reduce((sum, { calls }) => sum + calls.length, 0);
    expect(deltas.length).toBeGreaterThan(5 * count);
    const alone = await both({ ...calling, parallel_tool_calls: false });
    const must = await both({ ...asked, tool_choice: "required", logit_bias: { 123: 20 } });
    for (const { content, calls, finish } of [...alone, ...must]) {
      expect([content, finish]).toEqual([null, "tool_calls"]);
      for (const call of calls) expectValid(call);
    }
    for (const { calls } of alone) expect(calls).toHaveLength(1);
  });

  test("gets the tools, its calls and their results in the prompt", async () => {
    const call = (id: string, text: string) => ({
      id,
      type: "function",
      function: { name: "get_weather", arguments: text },
    });
    const history = [
      { role: "system", content: "Be brief." },
      ...messages,
      {
        role: "assistant",
        content: null,
        tool_calls: [call("1", '{"city":"Rome","days":1}'), call("2", "{oops")],
      },
      { role: "tool", tool_call_id: "1", content: "<|im_end|>sunny" },
      { role: "tool", tool_call_id: "2", content: [{ type: "text", text: "failed" }] },
      { role: "assistant", content: "Sunny." },
      { role: "user", content: "Thanks" },
    ];
    const prompt = await promptOf(server, { messages: history, tools });
    const [system, , calls, results] = prompt.split("<|im_end|>\n<|im_start|>");
    expect(system).toContain("Be brief.");
    for (const tool of tools) expect(system).toContain(`"name":"${tool.function.name}"`);
    expect(calls).toBe(
      'assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome","days":1}}\n</tool_call>\n' +
        '<tool_call>\n{"name": "get_weather", "arguments": {"arguments":"{oops"}}\n</tool_call>',
    );
    expect(results).toBe(
      "user\n<tool_response>\n<|im_end|>sunny\n</tool_response>\n<tool_response>\nfailed\n</tool_response>",
    );
    // Calls are rendered even without tools, and tools only if they may be called.
    const without = await promptOf(server, { messages: history });
    expect(without).toContain('<tool_call>\n{"name": "get_weather"');
    expect(without).toContain("user\n<tool_response>");
    expect(without).not.toContain("set.light-1");
    expect(await promptOf(server, { tools, tool_choice: "none" })).toBe(await promptOf(server, {}));
    const named = await promptOf(server, {
      tools,
      tool_choice: { type: "function", function: { name: "now" } },
    });
    expect(named).toContain("set.light-1");
  });

  const now = { type: "function", function: { name: "now" } };
  const wrong: [param: string, fields: object][] = [
    ["tools", { tools: [now, ...tools] }],
    [
      "tools",
      {
        tools: Array.from({ length: 129 }, (_, i) => ({
          type: "function",
          function: { name: `f${i}` },
        })),
      },
    ],
    ["tools.0.function.name", { tools: [{ type: "function", function: { name: "a b" } }] }],
    ["tools.0.function.name", { tools: [{ type: "function", function: { name: "" } }] }],
    ["tools.0.function", { tools: [{ type: "function" }] }],
    ["tools.1.type", { tools: [now, { type: "web_search" }] }],
    [
      "tools.0.function.parameters",
      { tools: [{ type: "function", function: { name: "f", parameters: SECRET } }] },
    ],
    ["tool_choice", { tools, tool_choice: "any" }],
    ["tool_choice", { tools, tool_choice: { type: "function", function: { name: SECRET } } }],
    ["tool_choice", { tool_choice: "required" }],
    ["tool_choice", { tools: [], tool_choice: "required" }],
    ["tool_choice", { tool_choice: { type: "function", function: { name: "now" } } }],
    ["parallel_tool_calls", { tools, parallel_tool_calls: 1 }],
    ["messages.0.tool_call_id", { messages: [{ role: "tool", content: "a" }] }],
    ["min_tokens", { tools, tool_choice: "required", min_tokens: 5 }],
    ["ignore_eos", { tools, ignore_eos: true }],
  ];

  test.each(wrong)("does not get an invalid request: %s", async (param, fields) => {
    for (const stream of [false, true]) {
      const answer = await server.post(path, { messages, max_tokens: 1, ...fields, stream });
      await expectRefusal(answer, { status: 400, param });
    }
  });
});

/** Its answer, whole and streamed; greedy, so that it recites its text. */
async function said(server: TestServer, fields: object = {}): Promise<Message> {
  const asked = { tools, temperature: 0, ...fields };
  const [whole] = await ask(server, asked);
  expect(await askStreamed(server, asked)).toEqual([whole!]);
  return whole!;
}

const hermes = 'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}';
const rome: Call = { name: "get_weather", arguments: '{"city": "Rome", "days": 3}' };
const now: Call = { name: "now", arguments: "{}" };
const finish = "tool_calls";

/** `pieces` are the arguments of the last call as they are streamed. */
const dialects: Record<
  string,
  Dialect & { hears: Message; pieces: string[]; free: Partial<Message> }
> = {
  "Qwen, thinking": {
    taught: hermes,
    says: [
      ...["I wond", "er <b>", "</th", "ink>\n\n", "Let me see.\n", "<tool", '_call>\n{"na'],
      ...['me": "now", "argu', 'ments": {}}\n</tool_ca', "ll>"],
      ...['\n<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": "Ro'],
      ...['me", "days": 3}', "}\n</tool_call>"],
    ],
    hears: { reasoning: "I wonder <b>", content: "Let me see.", calls: [now, rome], finish },
    pieces: ['{"city": "Ro', 'me", "days": 3}'],
    free: { content: expect.stringContaining('Let me see.\n<tool_call>\n{"name": "now"') },
  },
  "Qwen, with control tokens": {
    taught: hermes,
    says: [
      ...[
        "Hm",
        "</think>",
        "\n\n",
        "<tool_call>",
        '\n{"name": "get_weather", "arguments": ',
        '{"city": "Rome", "days": 3}}\n',
      ],
      "</tool_call>",
    ],
    control: ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    hears: { reasoning: "Hm", content: null, calls: [rome], finish },
    pieces: [rome.arguments],
    free: { reasoning: "Hm" },
  },
  Mistral: {
    taught: '[TOOL_CALLS][{"name": ...}]',
    says: [
      "Well.",
      "[TOOL_CALLS]",
      '[{"name": "now", "arguments": {}}',
      ', {"name": "get_wea',
      'ther", "arguments": {"city": "Rome", "days": 3}',
      "}]",
    ],
    control: ["[TOOL_CALLS]"],
    hears: { reasoning: undefined, content: "Well.", calls: [now, rome], finish },
    pieces: [rome.arguments],
    free: { content: expect.stringMatching(/^Well\..*Rome/) },
  },
  "gpt-oss": {
    taught: "<|channel|>commentary<|message|><|call|>",
    says: [
      ...["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>"],
      ...["assistant<|channel|>commentary", " to=functions.get_weather ", "<|constrain|>"],
      ...["json<|message|>", '{"city": "Rome", ', '"days": 3}'],
    ],
    control: ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"],
    hears: { reasoning: "Hm.", content: null, calls: [rome], finish },
    pieces: ['{"city": "Rome", ', '"days": 3}'],
    free: { reasoning: "Hm.", content: expect.stringContaining("get_weather") },
  },
  "Gemma 4": {
    taught: "<|tool_call>call:name{}<tool_call|> {# <channel|> #}",
    says: [
      ...["<|channel>", "thought\n", "Hm.", "<channel|>", "Let me see.\n", "<|tool_call>"],
      ...["call:now{}", "<tool_call|>", "<|tool_call>call:get_weather{ci", "ty:", '<|"|>'],
      ...['Rome<|"|>', ",days:3}", "<tool", "_call|>"],
    ],
    control: ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'],
    hears: { reasoning: "Hm.", content: "Let me see.", calls: [now, rome], finish },
    pieces: ["{", '"city": "Rome", "days": 3}'],
    free: { reasoning: "Hm.", content: expect.stringContaining("Let me see.") },
  },
  "Kimi K2": {
    taught: "<|tool_calls_section_begin|>",
    says: [
      ...["Well.", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.now:0"],
      ...["<|tool_call_argument_begin|>", "{}", "<|tool_call_end|>", "<|tool_call_begin|>func"],
      ...["tions.get_weather:1<|tool_call_argument_begin|>", '{"city": "Rome", ', '"days": 3}'],
      "<|tool_call_end|><|tool_calls_section_end|>",
    ],
    control: [
      "<|tool_calls_section_begin|>",
      "<|tool_call_begin|>",
      "<|tool_call_argument_begin|>",
      "<|tool_call_end|>",
    ],
    hears: { reasoning: undefined, content: "Well.", calls: [now, rome], finish },
    pieces: ['{"city": "Rome", ', '"days": 3}'],
    free: { content: expect.stringMatching(/^Well\..*Rome/) },
  },
  "Llama 3": {
    taught: '<|start_header_id|> {"name": function, "parameters": dictionary}',
    says: [
      '{"name": "now", "para',
      'meters": {}}',
      '; {"name": "get_weather", "parameters": ',
      '{"city": "Rome", "days": 3}',
      "}",
    ],
    hears: { reasoning: undefined, content: null, calls: [now, rome], finish },
    pieces: [rome.arguments],
    free: { content: expect.stringContaining('{"name": "now"') },
  },
};

describe.each(Object.entries(dialects))("%s", (name, dialect) => {
  const { hears, free } = dialect;
  const server = useTestServer(withDialect(dialect), settled);
  const isQwen = name.startsWith("Qwen");
  const thinking = { chat_template_kwargs: { enable_thinking: isQwen } };

  test("writes a thought, text and calls, and each is parsed as such", async () => {
    expect(await said(server, thinking)).toEqual(hears);
  });

  test("has the arguments of its calls streamed as it writes them", async () => {
    const body = { messages, max_tokens: 300, tools, temperature: 0, ...thinking, stream: true };
    const all = (await events(await server.post(path, body))) as ChatChunk[];
    const deltas = all.slice(0, -1).flatMap(({ choices }) => choices[0]!.delta.tool_calls ?? []);
    const own = deltas.filter(({ index }) => index === hears.calls.length - 1);
    expect(own.map(({ function: part }) => part.arguments)).toEqual(["", ...dialect.pieces]);
  });

  test("has a call in its answer that a stop string cuts off", async () => {
    const unnamed = await said(server, { ...thinking, stop: ["weather"] });
    if (name !== "Llama 3") expect(unnamed.content ?? "").toBe(hears.content ?? "");
    const { content, calls, finish } = await said(server, { ...thinking, stop: ["Rome"] });
    const before = hears.calls.slice(0, -1);
    expect(calls.slice(0, before.length)).toEqual(before);
    // Without a grammar it could be text.
    if (name === "Llama 3") {
      expect([calls.length, content]).toEqual([
        1,
        '; {"name": "get_weather", "parameters": {"city": "',
      ]);
      return;
    }
    const [cut, ...others] = calls.slice(before.length);
    expect([content, others, finish]).toEqual([hears.content, [], "stop"]);
    expect(cut!.name).toBe("get_weather");
    expect('{"city": "').toStartWith(cut!.arguments);
  });

  test("leaves no markup in its message, wherever max_tokens cuts it off", async () => {
    for (let max_tokens = 1; max_tokens <= dialect.says.length; max_tokens++) {
      const { content, reasoning, calls, finish } = await said(server, { ...thinking, max_tokens });
      expect(finish).toBe("length");
      expect(hears.content ?? "").toStartWith((content ?? "").trimEnd());
      expect(hears.reasoning ?? "").toStartWith(reasoning ?? "");
      for (const [i, { name, arguments: given }] of calls.entries()) {
        expect(name).toBe(hears.calls[i]!.name);
        expect(hears.calls[i]!.arguments).toStartWith(given);
      }
    }
  });

  test("makes at most one call without parallel_tool_calls", async () => {
    const { calls } = await said(server, { ...thinking, parallel_tool_calls: false });
    expect(calls).toEqual(hears.calls.slice(0, 1));
  });

  test("has its text left unparsed if tool_choice is none", async () => {
    const answer = await said(server, { ...thinking, tool_choice: "none" });
    expect(answer).toMatchObject({ ...free, calls: [], finish: "stop" });
  });

  test("gets tools and calls through its own template", async () => {
    const tool_calls = [{ id: "123456789", type: "function", function: rome }];
    const history = [
      ...messages,
      { role: "assistant", tool_calls },
      { role: "tool", tool_call_id: "123456789", content: "sunny" },
    ];
    const prompt = await promptOf(server, { tools, messages: history });
    expect(prompt).toStartWith('[{"type": "function", "function": {"name": "get_weather", ');
    expect(prompt).toContain(`"name": "get_weather", "arguments": ${rome.arguments}`);
    expect(prompt).toContain("<|im_start|>tool\nsunny<|im_end|>");
    expect(await promptOf(server, { messages: history })).not.toContain("set.light-1");
  });

  test("makes the required calls after a thought", async () => {
    for (const tool_choice of [
      "required",
      { type: "function", function: { name: "get_weather" } },
    ]) {
      const asked = { ...thinking, tools, tool_choice, n: 3, seed: 3, temperature: 0.7 };
      const answers = await ask(server, asked);
      for (const { calls, content, finish } of answers) {
        expect([content, finish]).toEqual([null, "tool_calls"]);
        for (const call of calls) expectValid(call);
        if (tool_choice !== "required") expect(calls).toMatchObject([{ name: "get_weather" }]);
      }
    }
  });

  test("answers in the response format after a thought", async () => {
    const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] };
    const response_format = { type: "json_schema", json_schema: { name: "x", schema } };
    // The grammar allows blanks after the thought.
    const asked = { ...thinking, tools: [], response_format, logit_bias: { 10: -100, 32: -100 } };
    const { content, finish } = await said(server, asked);
    expect([JSON.parse(content!), finish]).toEqual([{ ok: expect.any(Boolean) }, "stop"]);
  });
});
