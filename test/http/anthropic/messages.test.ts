// Anthropic's API over HTTP: what it takes and refuses, its events and their order, and that nothing is left of
// streams that end early.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { AnthropicError, type MessagesResponse } from "../../../src/api/anthropic/messages.ts";
import { checkOrder, eventsIn, messageOf } from "../../support/anthropic-events.ts";
import { withDialect } from "../../support/dialect-model.ts";
import { SECRET } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { leaveAtEachEvent, readKilled } from "../../support/stream-reads.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

setDefaultTimeout(30_000);
const path = "/v1/messages";
const messages = [{ role: "user", content: "What is it like?" }];
const standard = { model: "tiny", max_tokens: 40, messages, temperature: 0 };

async function ask(server: TestServer, fields: object = {}): Promise<MessagesResponse> {
  const response = await server.post(path, { ...standard, ...fields });
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  return JSON.parse(text);
}

async function stream(server: TestServer, fields: object = {}) {
  const response = await server.post(path, { ...standard, ...fields, stream: true });
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  const events = eventsIn(text);
  expect(checkOrder(events)).toBe("whole");
  return events;
}

/** The message, whole and streamed; only its id and what was cached may differ. */
async function both(server: TestServer, fields: object = {}): Promise<MessagesResponse> {
  const whole = await ask(server, fields);
  const streamed = messageOf(await stream(server, fields)) as MessagesResponse;
  const input = ({ usage }: MessagesResponse) => usage.input_tokens + usage.cache_read_input_tokens;
  expect(input(streamed)).toBe(input(whole));
  expect({ ...streamed, id: whole.id, usage: whole.usage }).toEqual(whole);
  expect(streamed.usage.output_tokens).toBe(whole.usage.output_tokens);
  return whole;
}

async function refusal(response: Response) {
  const body = await response.text();
  const { error, request_id } = AnthropicError.strict().parse(JSON.parse(body));
  expect(request_id).toBe(response.headers.get("request-id")!);
  expect(body).not.toContain(SECRET);
  return { status: response.status, ...error };
}

describe("a message", () => {
  const server = useTestServer({ args: ["--log-prompts"] });

  const promptOf = async (fields: object) => {
    await ask(server, { max_tokens: 1, ...fields });
    return server.prompts.at(-1)!;
  };
  /** The prompt of the same chat for OpenAI's API. */
  const chatPromptOf = async (fields: object) => {
    await server.post("/v1/chat/completions", { max_tokens: 1, ...fields });
    return server.prompts.at(-1)!;
  };

  test("is text, the same whole and streamed", async () => {
    const message = await both(server);
    expect(message).toEqual({
      id: expect.stringMatching(/^msg_[\da-f]{32}$/),
      type: "message",
      role: "assistant",
      model: "tiny",
      content: [{ type: "text", text: expect.stringMatching(/./s) }],
      stop_reason: "max_tokens",
      stop_sequence: null,
      usage: {
        input_tokens: expect.any(Number),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: expect.any(Number),
        output_tokens: 40,
        service_tier: "standard",
      },
    });
  });

  test("ends before a stop sequence, which it names", async () => {
    const [block] = (await ask(server)).content;
    const text = block?.type === "text" ? block.text : "";
    const stop = text.slice(9, 12);
    const before = text.slice(0, text.indexOf(stop));
    expect(await both(server, { stop_sequences: [`${stop}${SECRET}`, stop] })).toMatchObject({
      content: [{ type: "text", text: before }],
      stop_reason: "stop_sequence",
      stop_sequence: stop,
    });
  });

  test("computes only the prompt if max_tokens is 0", async () => {
    expect(await both(server, { max_tokens: 0 })).toMatchObject({
      content: [],
      stop_reason: "max_tokens",
      usage: { output_tokens: 0 },
    });
  });

  test("counts tokens found in the prefix cache apart", async () => {
    const content = `${"The same beginning, which is long enough. ".repeat(4)}End.`;
    const asked = { messages: [{ role: "user", content }] };
    const { usage: first } = await ask(server, asked);
    const { usage: second } = await ask(server, asked);
    expect(first.cache_read_input_tokens).toBe(0);
    expect(second.cache_read_input_tokens).toBeGreaterThanOrEqual(128);
    expect(second.input_tokens + second.cache_read_input_tokens).toBe(first.input_tokens);
  });

  const brief = { role: "system", content: "Be brief." };
  const blocks = (...texts: string[]) => texts.map((text) => ({ type: "text", text }));
  const prompted: [name: string, fields: object, chat: object][] = [
    ["a system prompt", { system: "Be brief." }, { messages: [brief, ...messages] }],
    [
      "a system prompt of blocks",
      {
        system: [{ ...blocks("Be")[0], cache_control: { type: "ephemeral" } }, ...blocks("brief.")],
      },
      { messages: [{ ...brief, content: "Be\nbrief." }, ...messages] },
    ],
    [
      "a message of the system where it stands",
      { messages: [...messages, brief, { role: "assistant", content: "So." }, ...messages] },
      { messages: [...messages, brief, { role: "assistant", content: "So." }, ...messages] },
    ],
    [
      "blocks of text",
      { messages: [{ role: "user", content: blocks("a", "b") }] },
      { messages: [{ role: "user", content: "a\nb" }] },
    ],
    [
      "consecutive messages of the user as one",
      {
        messages: [
          { role: "user", content: "a" },
          { role: "user", content: blocks("b") },
        ],
      },
      { messages: [{ role: "user", content: "a\nb" }] },
    ],
    [
      "a message to be continued",
      { messages: [...messages, { role: "assistant", content: "It is" }] },
      {
        messages: [...messages, { role: "assistant", content: "It is" }],
        continue_final_message: true,
      },
    ],
  ];
  test.each(prompted)("has the prompt of OpenAI's API: %s", async (_, fields, chat) => {
    expect(await promptOf(fields)).toBe(await chatPromptOf(chat));
  });

  const weather = {
    name: "get_weather",
    description: "The weather in a city.",
    input_schema: {
      $schema: "http://json-schema.org/draft-07/schema#",
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  };
  const time = { name: "get_time", input_schema: { type: "object" } };
  const calls = [
    ...messages,
    {
      role: "assistant",
      content: [
        ...blocks("Let me see."),
        { type: "tool_use", id: "t1", name: "get_weather", input: { city: "Rome" } },
        { type: "tool_use", id: "t2", name: "get_weather", input: { city: "Paris" } },
      ],
    },
    {
      role: "user",
      content: [
        { type: "tool_result", tool_use_id: "t1", content: "sunny" },
        { type: "tool_result", tool_use_id: "t2", content: blocks("no", "answer"), is_error: true },
        ...blocks("And now?"),
      ],
    },
  ];

  test("has the prompt of OpenAI's API: tools, calls and results", async () => {
    const call = (id: string, city: string) => ({
      id,
      type: "function",
      function: { name: "get_weather", arguments: JSON.stringify({ city }) },
    });
    const chat = [
      ...messages,
      {
        role: "assistant",
        content: "Let me see.",
        tool_calls: [call("t1", "Rome"), call("t2", "Paris")],
      },
      { role: "tool", tool_call_id: "t1", content: "sunny" },
      { role: "tool", tool_call_id: "t2", content: "Error: no\nanswer" },
      { role: "user", content: "And now?" },
    ];
    const { name, description, input_schema: parameters } = weather;
    const tools = [{ type: "function", function: { name, description, parameters } }];
    const prompt = await promptOf({ messages: calls, tools: [weather] });
    expect(prompt).toBe(await chatPromptOf({ messages: chat, tools }));
    expect(prompt).toContain("The weather in a city.");
    const none = { messages: calls, tools: [weather], tool_choice: { type: "none" } };
    expect(await promptOf(none)).toBe(await chatPromptOf({ messages: chat }));
  });

  test("calls the tool that tool_choice demands, with valid arguments", async () => {
    const called = { type: "tool_use", id: expect.stringMatching(/^\w+$/), name: "get_weather" };
    const input = { city: expect.stringMatching(/^(Paris|Rome)$/) };
    for (const tool_choice of [
      { type: "tool", name: "get_weather" },
      { type: "any", disable_parallel_tool_use: true },
    ]) {
      const tools = tool_choice.type === "any" ? [weather] : [time, weather];
      const asked = { max_tokens: 400, tools, tool_choice };
      const whole = await ask(server, asked);
      expect(whole.content).toEqual([{ ...called, input } as never]);
      expect(whole.stop_reason).toBe("tool_use");
      const streamed = messageOf(await stream(server, asked));
      expect(streamed.content).toEqual([{ ...whole.content[0], id: expect.any(String) } as never]);
    }
  });

  test("matches the schema that it is constrained to", async () => {
    const format = {
      type: "json_schema",
      schema: {
        type: "object",
        properties: { ok: { type: "boolean" } },
        required: ["ok"],
        additionalProperties: false,
      },
    };
    for (const fields of [{ output_config: { format } }, { output_format: format }]) {
      const { content, stop_reason } = await both(server, { ...fields, max_tokens: 100 });
      const [block] = content;
      expect(JSON.parse(block?.type === "text" ? block.text : "")).toEqual({
        ok: expect.any(Boolean),
      });
      expect(stop_reason).toBe("end_turn");
    }
  });

  test("has as many tokens as count_tokens says", async () => {
    for (const fields of [
      {},
      { system: "Be brief." },
      { messages: calls, tools: [weather, time], system: [{ type: "text", text: "Hm." }] },
      { messages: calls, tools: [weather], tool_choice: { type: "none" } },
      { messages: [...messages, { role: "assistant", content: "It is" }] },
      { messages: [{ role: "user", content: "A long text. ".repeat(250) }] },
    ]) {
      const { usage } = await ask(server, { ...fields, max_tokens: 1 });
      const { max_tokens: _, temperature: __, ...counted } = standard;
      const response = await server.post(`${path}/count_tokens`, { ...counted, ...fields });
      expect(await response.json()).toEqual({
        input_tokens: usage.input_tokens + usage.cache_read_input_tokens,
      });
    }
    // A prompt may be counted that is too long to be answered.
    const long = { messages: [{ role: "user", content: "x".repeat(5000) }] };
    const counted = await (await server.post(`${path}/count_tokens`, long)).json();
    expect(counted).toEqual({ input_tokens: expect.any(Number) });
  });

  test("accepts what agents send", async () => {
    const response = await server.post(
      `${path}?beta=true`,
      {
        ...standard,
        metadata: { user_id: "user" },
        thinking: { type: "adaptive" },
        context_management: { edits: [{ type: "clear_thinking_20251015", keep: "all" }] },
        output_config: { effort: "max" },
        cache_control: { type: "ephemeral" },
        service_tier: "auto",
        mcp_servers: [],
        tools: [{ ...time, type: "custom", cache_control: { type: "ephemeral", ttl: "1h" } }],
      },
      { headers: { "anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b" } },
    );
    expect([response.status, await response.json()]).toMatchObject([200, { type: "message" }]);
    expect(response.headers.get("request-id")).toBe(response.headers.get("x-request-id"));
  });

  test("of the tier standard_only has at most the priority NORMAL", async () => {
    const { usage } = await ask(server, { service_tier: "standard_only" });
    expect(usage.service_tier).toBe("standard");
  });

  const image = { type: "image", source: { type: "url", url: `http://${SECRET}` } };
  const inMessage = (...content: object[]) => ({ messages: [{ role: "user", content }] });
  const inAnswer = (...content: object[]) => ({
    messages: [...messages, { role: "assistant", content }, ...messages],
  });
  const wrong: [says: string, fields: object][] = [
    ["'messages.0.content.0': images are not supported", inMessage(image)],
    [
      "'messages.0.content.0.content.0': images are not supported",
      inMessage({ type: "tool_result", tool_use_id: "a", content: [image] }),
    ],
    [
      "'messages.0.content.1': documents are not supported",
      inMessage({ type: "text", text: "a" }, { type: "document", source: {} }),
    ],
    [
      "'messages.1.content.0': redacted thoughts are not supported",
      inAnswer({ type: "redacted_thinking", data: SECRET }),
    ],
    ["'messages.0.content.0.type': expected a block of type", inMessage({ type: SECRET })],
    [
      "'messages.0.content.0.type': expected no block of type tool_use",
      inMessage({ type: "tool_use", id: "a", name: "a", input: {} }),
    ],
    [
      "'messages.1.content.0.type': expected no block of type tool_result",
      inAnswer({ type: "tool_result", tool_use_id: "a" }),
    ],
    ["'messages.0.role'", { messages: [{ role: "tool", content: "a" }] }],
    ["'messages'", { messages: [] }],
    ["Missing required parameter: 'messages'", { messages: undefined }],
    ["Missing required parameter: 'max_tokens'", { max_tokens: undefined }],
    ["'max_tokens'", { max_tokens: -1 }],
    ["'temperature'", { temperature: 3 }],
    ["'stop_sequences.0'", { stop_sequences: [""] }],
    ["'stop_sequences'", { stop_sequences: Array(65).fill("a") }],
    ["'tools.0.type': only tools of type custom", { tools: [{ type: "bash_20250124" }] }],
    ["'tools.0.defer_loading'", { tools: [{ ...time, defer_loading: true }] }],
    ["'tools.0.name'", { tools: [{ ...time, name: `${SECRET}!` }] }],
    ["'tools': two tools are named", { tools: [time, time] }],
    ["'tool_choice': only allowed with tools", { tool_choice: { type: "any" } }],
    [
      "'tool_choice': the tool is not in tools",
      { tools: [time], tool_choice: { type: "tool", name: SECRET } },
    ],
    ["'tool_choice", { tools: [time], tool_choice: { type: SECRET } }],
    ["'thinking", { thinking: { type: "between_tools" } }],
    ["'output_config.format.type'", { output_config: { format: { type: "xml" } } }],
    [
      "'output_config'",
      { output_config: { format: { type: "json_schema", schema: { $ref: "#/x" } } } },
    ],
    ["'container': not supported", { container: "a" }],
    ["'mcp_servers'", { mcp_servers: [{ type: "url", url: SECRET }] }],
    ["'speed'", { speed: "fast" }],
    [
      "'messages': expected a text at the end",
      {
        messages: [
          ...messages,
          { role: "assistant", content: [{ type: "tool_use", id: "a", name: "a", input: {} }] },
        ],
      },
    ],
    [
      "The model's maximum context length is 4096 tokens",
      inMessage({ type: "text", text: "x".repeat(5000) }),
    ],
  ];
  test.each(wrong)("is refused by name: %s", async (says, fields) => {
    for (const streamed of [false, true]) {
      const response = await server.post(path, { ...standard, ...fields, stream: streamed });
      expect(await refusal(response)).toMatchObject({
        status: 400,
        type: "invalid_request_error",
        message: expect.stringContaining(says),
      });
    }
  });

  test("for an unknown model is not found", async () => {
    const response = await server.post(path, { ...standard, model: `org/${SECRET}` });
    expect(await refusal(response)).toMatchObject({ status: 404, type: "not_found_error" });
    const counted = await server.post(`${path}/count_tokens`, { messages, model: "../x" });
    expect(await refusal(counted)).toMatchObject({ status: 404, type: "not_found_error" });
  });

  test("cut at every event leaves nothing", async () => {
    const asked = { ...standard, max_tokens: 12, stream: true };
    const total = await leaveAtEachEvent(server, path, asked, (text) => {
      const events = eventsIn(text.slice(0, text.lastIndexOf("\n\n") + 2));
      expect(checkOrder(events)).not.toBe("failed");
      return events;
    });
    expect(await stream(server, asked)).toHaveLength(total);
  });

  test("that the engine fails ends with an error event", async () => {
    const asked = { ...standard, max_tokens: 3000, stream: true };
    const events = eventsIn(await readKilled(server, path, asked));
    expect(checkOrder(events)).toBe("failed");
    expect(events.at(-1)).toEqual({
      type: "error",
      error: { type: "api_error", message: "The answer failed." },
    });
    // The engine is back.
    await ask(server);
  });
});

test("HEAD / is answered, whatever the key", async () => {
  await using server = await startTestServer({ args: ["--api-key", "sk-one"] });
  const head = (key: string) =>
    server.get("/", { method: "HEAD", headers: { authorization: `Bearer ${key}` } });
  expect([(await head("sk-one")).status, (await head("sk-two")).status]).toEqual([200, 200]);
});

describe("a model that thinks and calls", () => {
  const thought = "I wonder <b>";
  const says = [
    ...["I wond", "er <b>", "</th", "ink>\n\n", "Let me see.\n", "<tool", '_call>\n{"na'],
    ...['me": "now", "argu', 'ments": {}}\n</tool_ca', "ll>"],
    ...['\n<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": "Ro'],
    ...['me", "days": 3}', "}\n</tool_call>"],
  ];
  const taught =
    'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}' +
    "{% for m in messages %}{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{% endfor %}";
  const tools = [
    { name: "now", input_schema: { type: "object", properties: {} } },
    {
      name: "get_weather",
      input_schema: {
        type: "object",
        properties: { city: { type: "string" }, days: { type: "integer" } },
        required: ["city", "days"],
      },
    },
  ];
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const asked = { tools, thinking, max_tokens: 100 };
  const server = useTestServer(withDialect({ taught, says }, { args: ["--log-prompts"] }), settled);

  const withoutIds = (message: object) =>
    JSON.parse(JSON.stringify(message, (key, value) => (key === "id" ? undefined : value)));

  test("has a thought with its signature, text and parallel calls, in order", async () => {
    const whole = await ask(server, asked);
    expect(whole.content as object[]).toEqual([
      { type: "thinking", thinking: thought, signature: expect.stringMatching(/^.{20,}$/) },
      { type: "text", text: "Let me see." },
      { type: "tool_use", id: expect.any(String), name: "now", input: {} },
      {
        type: "tool_use",
        id: expect.any(String),
        name: "get_weather",
        input: { city: "Rome", days: 3 },
      },
    ]);
    expect(whole.stop_reason).toBe("tool_use");
    const streamed = messageOf(await stream(server, asked));
    expect(withoutIds(streamed.content)).toEqual(withoutIds(whole.content));
    const ids = [...whole.content, ...streamed.content].flatMap((block) =>
      block.type === "tool_use" ? [block.id] : [],
    );
    expect(new Set(ids).size).toBe(4);
  });

  test("has its thoughts, calls and their results in the next prompt", async () => {
    const { content } = await ask(server, asked);
    const results = content.flatMap((block) =>
      block.type === "tool_use"
        ? [{ type: "tool_result", tool_use_id: block.id, content: `result of ${block.name}` }]
        : [],
    );
    const turns = [
      { role: "assistant", content },
      { role: "user", content: results },
    ];
    const history = [...messages, ...turns];
    await ask(server, { ...asked, messages: history });
    const prompt = server.prompts.at(-1)!;
    expect(prompt).toContain(`[${thought}]`);
    expect(prompt).toContain('Let me see.{"name": "now", "arguments": {}}{"name": "get_weather"');
    expect(prompt).toContain("<|im_start|>tool\nresult of now<|im_end|>");
    expect(prompt).toContain("<|im_start|>tool\nresult of get_weather<|im_end|>");
  });

  test("omits its thoughts if asked to, and has them in the next prompt all the same", async () => {
    const omitted = { ...asked, thinking: { ...thinking, display: "omitted" } };
    const whole = await ask(server, omitted);
    const signature = expect.stringMatching(/./);
    expect(whole.content[0]).toEqual({ type: "thinking", thinking: "", signature });
    const events = await stream(server, omitted);
    expect(messageOf(events).content[0]).toEqual(whole.content[0]!);
    expect(JSON.stringify(events)).not.toContain("wond");
    const history = [...messages, { role: "assistant", content: whole.content }, ...messages];
    await ask(server, { ...omitted, messages: history });
    expect(server.prompts.at(-1)).toContain(`[${thought}]`);
  });

  test("thinks only if asked to", async () => {
    for (const other of [{ type: "disabled" }, undefined]) {
      await ask(server, { ...asked, thinking: other });
      expect(server.prompts.at(-1)).toEndWith("assistant\n");
    }
    await ask(server, { ...asked, thinking: { type: "adaptive" } });
    expect(server.prompts.at(-1)).toEndWith("assistant\n<think>\n");
  });

  test("makes one call if parallel calls are disabled", async () => {
    const tool_choice = { type: "auto", disable_parallel_tool_use: true };
    const { content, stop_reason } = await ask(server, { ...asked, tool_choice });
    const calls = content.filter(({ type }) => type === "tool_use");
    expect([calls.length, stop_reason]).toEqual([1, "tool_use"]);
  });

  test("has a valid shape wherever the token limit cuts it off", async () => {
    for (let max_tokens = 1; max_tokens <= says.length; max_tokens++) {
      const whole = await ask(server, { ...asked, max_tokens });
      const events = await stream(server, { ...asked, max_tokens });
      expect(events.at(-2)).toMatchObject({ delta: { stop_reason: "max_tokens" } });
      expect(whole.stop_reason).toBe("max_tokens");
      for (const block of whole.content) {
        if (block.type === "text") expect("Let me see.\n").toStartWith(block.text);
        if (block.type === "thinking") expect(thought).toStartWith(block.thinking);
        if (block.type === "tool_use") expect(block.input).toBeObject();
      }
      // What is whole in the response is told by the events as well.
      const told = events.filter(({ type }) => type === "content_block_start").length;
      expect(told).toBeGreaterThanOrEqual(whole.content.length);
    }
  });
});

describe("a server without room", () => {
  const limited = keyEntry("limited", "sk-limited", { limits: { concurrent: 1 } });
  const server = useTestServer(
    {
      args: "--max-batch-size 1 --max-queue 4 --api-key sk-a --max-body-size 4096".split(" "),
      keys: { keys: [limited] },
      heartbeatSeconds: 0.05,
    },
    settled,
  );

  const post = (fields: object, key = "sk-a") =>
    fetch(`${server.url}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-api-key": key },
      body: JSON.stringify({ ...standard, ...fields }),
    });
  /** Runs until it is aborted. */
  const occupy = async (key = "sk-a") => {
    const leaving = new AbortController();
    const endless = { prompt: "Never stop.", max_tokens: 4000, ignore_eos: true, stream: true };
    const response = await server.post("/v1/completions", endless, {
      headers: { authorization: `Bearer ${key}` },
      signal: leaving.signal,
    });
    response.text().catch(() => {});
    return () => leaving.abort();
  };

  const until = async (is: () => boolean) => {
    while (!is()) await Bun.sleep(5);
  };

  test("takes the key of either header, and refuses others", async () => {
    const wrong = await post({}, "sk-wrong");
    expect(await refusal(wrong)).toMatchObject({ status: 401, type: "authentication_error" });
    const bearer = await server.post(path, standard, { headers: { authorization: "Bearer sk-a" } });
    expect([bearer.status, (await post({})).status]).toEqual([200, 200]);
  });

  test("refuses a body that is too large", async () => {
    const response = await post({ system: "x".repeat(5000) });
    expect(await refusal(response)).toMatchObject({ status: 413, type: "request_too_large" });
  });

  test("tells a key that is over its limit", async () => {
    const leave = await occupy("sk-limited");
    const response = await post({}, "sk-limited");
    leave();
    expect(response.headers.get("retry-after")).toBe("1");
    expect(await refusal(response)).toMatchObject({ status: 429, type: "rate_limit_error" });
  });

  test("is overloaded when its queue is full, and while it drains", async () => {
    const { admission } = server.serving;
    // A key gets half of the five places, rounded up.
    const running = await occupy();
    const waiting = Array.from({ length: 2 }, () => post({ max_tokens: 1 }));
    await until(() => admission.count === 3);
    const full = await post({});
    running();
    for (const { status } of await Promise.all(waiting)) expect(status).toBe(200);
    expect(full.headers.get("retry-after")).toBe("1");
    expect(await refusal(full)).toMatchObject({ status: 529, type: "overloaded_error" });
    admission.phase = "draining";
    const draining = await refusal(await post({ stream: true }));
    admission.phase = "open";
    expect(draining).toMatchObject({ status: 529, type: "overloaded_error" });
  });

  test("sends pings to a client that waits, after the message has started", async () => {
    const leave = await occupy();
    const response = await post({ max_tokens: 4, stream: true });
    expect(response.status).toBe(200);
    setTimeout(leave, 300);
    const events = eventsIn(await response.text());
    expect(checkOrder(events)).toBe("whole");
    const types = events.map(({ type }) => type);
    expect(types.slice(0, 3)).toEqual(["message_start", "ping", "ping"]);
    expect(events.at(-2)).toMatchObject({ usage: { output_tokens: 4 } });
  });
});
