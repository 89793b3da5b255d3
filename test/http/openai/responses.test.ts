// OpenAI's Responses API over HTTP: what it takes and refuses, its events and their order, what is stored, and that
// nothing is left of streams that end early.
import { describe, expect, setDefaultTimeout, spyOn, test } from "bun:test";
import type { OutputItem } from "../../../src/api/openai/response-items.ts";
import type { ResponseObject } from "../../../src/api/openai/responses.ts";
import { withDialect } from "../../support/dialect-model.ts";
import { expectRefusal, SECRET } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { patchGrammar } from "../../support/patch-grammar.ts";
import { checkOrder, eventsIn, responseOf, textOf } from "../../support/response-events.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { leaveAtEachEvent, readKilled } from "../../support/stream-reads.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

setDefaultTimeout(30_000);
const path = "/v1/responses";
const standard = { model: "tiny", input: "How is it?", max_output_tokens: 40, temperature: 0 };

async function ask(server: TestServer, fields: object = {}, key?: string): Promise<ResponseObject> {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` };
  const response = await server.post(path, { ...standard, ...fields }, { headers });
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  return JSON.parse(text);
}

async function stream(server: TestServer, fields: object = {}) {
  const response = await server.post(path, { ...standard, ...fields, stream: true });
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  const events = eventsIn(text);
  const status = checkOrder(events);
  expect(status).toBe(responseOf(events).status);
  return events;
}

/** Without what differs each time. */
function lasting(response: ResponseObject): object {
  const { id: _, created_at: __, completed_at: ___, usage, ...rest } = response;
  const output = rest.output.map((item) => ({ ...item, id: "", call_id: "" }));
  return { ...rest, output, tokens: [usage?.input_tokens, usage?.output_tokens] };
}

async function both(server: TestServer, fields: object = {}): Promise<ResponseObject> {
  const whole = await ask(server, fields);
  const streamed = responseOf(await stream(server, fields));
  expect(lasting(streamed)).toEqual(lasting(whole));
  return whole;
}

const weather = {
  type: "function",
  name: "get_weather",
  description: "The weather in a city.",
  parameters: {
    type: "object",
    properties: { city: { enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  },
};
const time = { type: "function", name: "get_time", parameters: null };
const lark =
  'start: "*** Begin" LF line+ "*** End"\nline: ("+" | "-") /[a-c"]{2}/ LF\n%import common.LF';
const custom = (syntax: string, definition: string) => ({
  type: "custom",
  name: "patch",
  description: "Changes a file.",
  format: { type: "grammar", syntax, definition },
});

describe("a response", () => {
  const keys = ["sk-alice", "sk-bob"].map((key) => keyEntry(key.slice(3), key));
  const server = useTestServer({ args: ["--log-prompts"], keys: { keys } });

  const promptOf = async (fields: object) => {
    await ask(server, { max_output_tokens: 1, store: false, ...fields });
    return server.prompts.at(-1)!;
  };
  const chatPromptOf = async (fields: object) => {
    await server.post("/v1/chat/completions", { max_tokens: 1, ...fields });
    return server.prompts.at(-1)!;
  };

  test("is a message, the same whole and streamed", async () => {
    const response = await both(server);
    expect(structuredClone(response)).toMatchObject({
      id: expect.stringMatching(/^resp_[\da-f]{32}$/),
      object: "response",
      status: "incomplete",
      incomplete_details: { reason: "max_output_tokens" },
      model: "tiny",
      output: [
        {
          type: "message",
          role: "assistant",
          status: "incomplete",
          content: [{ type: "output_text", text: expect.stringMatching(/./s) }],
        },
      ],
      usage: { output_tokens: 40, output_tokens_details: { reasoning_tokens: 0 } },
      store: true,
    } as never);
    const { usage } = response;
    expect(usage!.total_tokens).toBe(usage!.input_tokens + usage!.output_tokens);
  });

  const user = (content: unknown) => ({ role: "user", content });
  const prompted: [name: string, fields: object, chat: object][] = [
    ["a text", { input: "Hi" }, { messages: [user("Hi")] }],
    [
      "instructions",
      { input: "Hi", instructions: "Be brief." },
      { messages: [{ role: "developer", content: "Be brief." }, user("Hi")] },
    ],
    [
      "messages with and without their type, in parts",
      {
        input: [
          {
            type: "message",
            role: "developer",
            content: [{ type: "input_text", text: "Be brief." }],
          },
          user("a"),
          user([
            { type: "input_text", text: "b" },
            { type: "input_text", text: "c" },
          ]),
          {
            type: "message",
            id: "msg_1",
            role: "assistant",
            status: "completed",
            content: [{ type: "output_text", text: "d", annotations: [] }],
          },
          user("e"),
        ],
      },
      {
        messages: [
          { role: "developer", content: "Be brief." },
          user("a"),
          user("b\nc"),
          { role: "assistant", content: "d" },
          user("e"),
        ],
      },
    ],
  ];
  test.each(prompted)("has the prompt of a chat: %s", async (_, fields, chat) => {
    expect(await promptOf(fields)).toBe(await chatPromptOf(chat));
  });

  test("has the prompt of a chat: tools, calls and their outputs", async () => {
    const input = [
      user("Hi"),
      { type: "message", role: "assistant", content: "Let me see." },
      { type: "function_call", call_id: "1", name: "get_weather", arguments: '{"city":"Rome"}' },
      { type: "function_call", call_id: "2", name: "list", namespace: "files", arguments: "{}" },
      { type: "custom_tool_call", call_id: "3", name: "patch", input: "*** Begin" },
      { type: "function_call_output", call_id: "1", output: "sunny" },
      {
        type: "function_call_output",
        call_id: "2",
        output: [{ type: "input_text", text: "none" }],
      },
      { type: "custom_tool_call_output", call_id: "3", output: "done" },
    ];
    const list = { type: "function", name: "list", parameters: {}, description: "All files." };
    const tools = [
      weather,
      { type: "web_search", search_context_size: "low" },
      { type: "namespace", name: "files", description: "Files.", tools: [list] },
      { type: "custom", name: "patch", description: "Changes a file." },
    ];
    const call = (id: string, name: string, given: string) => ({
      id,
      type: "function",
      function: { name, arguments: given },
    });
    const inputOnly = {
      type: "object",
      properties: { input: { type: "string" } },
      required: ["input"],
      additionalProperties: false,
    };
    const chat = {
      messages: [
        user("Hi"),
        {
          role: "assistant",
          content: "Let me see.",
          tool_calls: [
            call("1", "get_weather", '{"city":"Rome"}'),
            call("2", "files__list", "{}"),
            call("3", "patch", '{"input":"*** Begin"}'),
          ],
        },
        { role: "tool", tool_call_id: "1", content: "sunny" },
        { role: "tool", tool_call_id: "2", content: "none" },
        { role: "tool", tool_call_id: "3", content: "done" },
      ],
      tools: [
        [weather.name, weather.description, weather.parameters],
        ["files__list", "All files.", {}],
        ["patch", "Changes a file.", inputOnly],
      ].map(([name, description, parameters]) => ({
        type: "function",
        function: { name, description, parameters },
      })),
    };
    expect(await promptOf({ input, tools })).toBe(await chatPromptOf(chat));
  });

  test("calls the tools that tool_choice demands, under their own names", async () => {
    const namespace = { type: "namespace", name: "sky", description: "", tools: [weather] };
    const rows: [tools: object[], choice: unknown, called: object][] = [
      [[time, weather], { type: "function", name: "get_weather" }, { name: "get_weather" }],
      [
        [time, namespace],
        { type: "function", name: "get_weather", namespace: "sky" },
        { name: "get_weather", namespace: "sky" },
      ],
      [
        [time, weather],
        {
          type: "allowed_tools",
          mode: "required",
          tools: [{ type: "function", name: "get_weather" }],
        },
        { name: "get_weather" },
      ],
    ];
    for (const [tools, tool_choice, called] of rows) {
      const asked = { tools, tool_choice, parallel_tool_calls: false, max_output_tokens: 400 };
      const { output, status } = await both(server, asked);
      expect([status, output.length]).toEqual(["completed", 1]);
      expect(structuredClone(output[0])).toMatchObject({
        type: "function_call",
        id: expect.stringMatching(/^fc_/),
        call_id: expect.stringMatching(/./),
        status: "completed",
        ...called,
      } as never);
      const { city } = JSON.parse(textOf(output[0]!));
      expect(["Paris", "Rome"]).toContain(city);
    }
  });

  test("calls custom tools with what their grammars derive", async () => {
    for (const [tool, expected] of [
      [custom("lark", lark), /^\*\*\* Begin\n([+-][a-c"]{2}\n)+\*\*\* End$/],
      [custom("regex", "(ab|c\\n){2,3}!"), /^(ab|c\n){2,3}!$/],
    ] as const) {
      for (const temperature of [0, 0.7, 1]) {
        const { output } = await ask(server, {
          tools: [tool],
          tool_choice: { type: "custom", name: "patch" },
          parallel_tool_calls: false,
          max_output_tokens: 800,
          temperature,
        });
        expect(output[0]).toMatchObject({ type: "custom_tool_call", name: "patch" });
        expect(textOf(output[0]!)).toMatch(expected);
      }
    }
    const streamed = await stream(server, {
      tools: [custom("regex", "a{3}")],
      tool_choice: "required",
      parallel_tool_calls: false,
      max_output_tokens: 200,
    });
    expect(streamed.map(({ type }) => type).slice(2, -1)).toEqual([
      "response.output_item.added",
      "response.custom_tool_call_input.delta",
      "response.custom_tool_call_input.delta",
      "response.custom_tool_call_input.delta",
      "response.custom_tool_call_input.done",
      "response.output_item.done",
    ]);
    expect(textOf(responseOf(streamed).output[0]!)).toBe("aaa");
  });

  test("follows the grammar of patches", async () => {
    const { output } = await ask(server, {
      tools: [custom("lark", patchGrammar)],
      tool_choice: "required",
      parallel_tool_calls: false,
      max_output_tokens: 300,
      temperature: 1,
    });
    // The file's name takes a random model long.
    expect(textOf(output[0]!)).toMatch(/^\*\*\* Begin Patch\n\*\*\* (Add|Delete|Update) File: ./);
  });

  test("tells the model the grammars of custom tools as they were written", async () => {
    const prompt = await promptOf({ tools: [custom("lark", lark)] });
    expect(prompt).toContain(
      JSON.stringify(`Changes a file.\n\nThe input has to match`).slice(1, -1),
    );
    expect(prompt).toContain(JSON.stringify(lark).slice(1, -1));
    expect(prompt).not.toContain('"pattern"');
  });

  test("matches the format of its text", async () => {
    const schema = {
      type: "object",
      properties: { ok: { type: "boolean" } },
      required: ["ok"],
      additionalProperties: false,
    };
    const format = { type: "json_schema", name: "x", schema, strict: true };
    const { output, status } = await both(server, { text: { format }, max_output_tokens: 100 });
    expect(status).toBe("completed");
    expect(JSON.parse(textOf(output[0]!))).toEqual({ ok: expect.any(Boolean) });
  });

  test("is stored, and gone on with, for its key alone", async () => {
    const first = await ask(server, { instructions: "Be brief." }, "sk-alice");
    const asAlice = { headers: { authorization: "Bearer sk-alice" } };
    const asBob = { headers: { authorization: "Bearer sk-bob" } };
    const url = `${path}/${first.id}`;
    expect(await (await server.get(url, asAlice)).json()).toEqual(first);
    await expectRefusal(await server.get(url, asBob), { status: 404, code: "response_not_found" });
    const next = { input: "And now?", previous_response_id: first.id };
    const second = await ask(server, next, "sk-alice");
    expect(second.previous_response_id).toBe(first.id);
    const prompt = server.prompts.at(-1)!;
    const said = textOf(first.output[0]!);
    const chat = [user(standard.input), { role: "assistant", content: said }, user("And now?")];
    // Instructions are not carried over.
    expect(prompt).toBe(await chatPromptOf({ messages: chat }));
    await expectRefusal(await server.post(path, { ...standard, ...next }, asBob), {
      status: 400,
      param: "previous_response_id",
      code: "previous_response_not_found",
    });
    // What was before is listed too.
    type Items = { data: { id: string; type: string }[]; has_more: boolean; last_id: string };
    const list = async (query: string) =>
      (await (
        await server.get(`${path}/${second.id}/input_items${query}`, asAlice)
      ).json()) as Items;
    const all = await list("?order=asc");
    expect(all.data.map(({ type }) => type)).toEqual(["message", "message", "message"]);
    expect((await list("")).data).toEqual(all.data.toReversed());
    const page = await list("?order=asc&limit=2");
    expect([page.data.length, page.has_more, page.last_id]).toEqual([2, true, all.data[1]!.id]);
    const rest = await list(`?order=asc&after=${page.last_id}`);
    expect([rest.data, rest.has_more]).toEqual([all.data.slice(2), false]);
    for (const query of ["?limit=0", "?limit=x", "?order=up", "?after=msg_unknown", "?after="]) {
      const answer = await server.get(`${path}/${second.id}/input_items${query}`, asAlice);
      await expectRefusal(answer, { status: 400 });
    }
    // A response is whole without the one before it.
    const gone = await server.get(url, { ...asAlice, method: "DELETE" });
    expect(await gone.json()).toEqual({ id: first.id, object: "response", deleted: true });
    await expectRefusal(await server.get(url, asAlice), { status: 404 });
    await expectRefusal(await server.get(url, { ...asAlice, method: "DELETE" }), { status: 404 });
    await ask(server, { input: "So?", previous_response_id: second.id }, "sk-alice");
    expect(server.prompts.at(-1)).toStartWith(prompt);
  });

  test("that is streamed is stored as it ended", async () => {
    const response = responseOf(await stream(server));
    expect(await (await server.get(`${path}/${response.id}`)).json()).toEqual(response);
    const streamed = await server.get(`${path}/${response.id}?stream=true`);
    await expectRefusal(streamed, { status: 400, param: "stream" });
  });

  test("is not stored if it is not to be, or if it is too large", async () => {
    const { id, store } = await ask(server, { store: false });
    expect(store).toBeFalse();
    await expectRefusal(await server.get(`${path}/${id}`), { status: 404 });
    spyOn(server.serving.responses, "save").mockReturnValueOnce(false);
    expect((await ask(server)).store).toBeFalse();
    spyOn(server.serving.log, "error").mockImplementationOnce(() => {});
    spyOn(server.serving.responses, "save").mockImplementationOnce(() => {
      throw new Error("the disk is full");
    });
    expect((await ask(server)).store).toBeFalse();
  });

  test("accepts what agents send", async () => {
    await ask(server, {
      store: false,
      include: ["reasoning.encrypted_content"],
      reasoning: { effort: "medium", summary: "auto" },
      prompt_cache_key: "a",
      client_metadata: { a: "b" },
      text: { verbosity: "low" },
      truncation: "disabled",
      service_tier: "auto",
      metadata: { a: "b" },
      tools: [
        { type: "web_search", external_web_access: false },
        { ...weather, strict: false },
      ],
    });
  });

  const image = { type: "input_image", image_url: SECRET };
  const wrong: [param: string, fields: object][] = [
    ["input", { input: undefined }],
    ["input.0.content.0", { input: [user([image])] }],
    [
      "input.0.output.0",
      { input: [{ type: "function_call_output", call_id: "a", output: [image] }] },
    ],
    ["input.0.type", { input: [{ type: "item_reference", id: SECRET }] }],
    ["input.0.role", { input: [{ role: SECRET, content: "a" }] }],
    ["background", { background: true }],
    ["metadata", { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [i, ""])) }],
    ["conversation", { conversation: "a" }],
    ["prompt", { prompt: { id: SECRET } }],
    ["truncation", { truncation: "auto" }],
    ["include.0", { include: ["message.output_text.logprobs"] }],
    ["top_logprobs", { top_logprobs: 2 }],
    ["max_output_tokens", { max_output_tokens: 0 }],
    ["previous_response_id", { previous_response_id: `resp_${SECRET}` }],
    ["tools.0.type", { tools: [{ type: "code_interpreter", container: { type: "auto" } }] }],
    ["tools", { tools: [weather, weather] }],
    ["tools.0.name", { tools: [{ ...weather, name: `${SECRET} ` }] }],
    ["tool_choice", { tools: [weather], tool_choice: { type: "function", name: SECRET } }],
    ["tool_choice", { tools: [weather], tool_choice: { type: "custom", name: "get_weather" } }],
    ["tool_choice", { tool_choice: "required" }],
    ["tools.0.format.definition", { tools: [custom("lark", 'start: start "a" | "b"')] }],
    ["tools.0.format.definition", { tools: [custom("lark", SECRET)] }],
    [
      "tools",
      { tools: ["a", "b"].map((name) => ({ ...custom("regex", "a".repeat(40_000)), name })) },
    ],
    ["tools", { tools: [custom("regex", "(?<=a)b")], tool_choice: "required" }],
    ["tools", { tools: [custom("regex", "(")], tool_choice: "required" }],
    ["text", { text: { format: { type: "json_schema", name: "x", schema: { $ref: "#/x" } } } }],
    ["text.format.name", { text: { format: { type: "json_schema", name: " ", schema: {} } } }],
    ["input", { input: "x".repeat(5000) }],
  ];
  test.each(wrong)("is refused by name: %s", async (param, fields) => {
    for (const streamed of [false, true]) {
      const response = await server.post(path, { ...standard, ...fields, stream: streamed });
      await expectRefusal(response, { status: 400, param });
    }
  });

  test("cut at every event leaves nothing", async () => {
    const asked = { ...standard, max_output_tokens: 10, stream: true };
    const total = await leaveAtEachEvent(server, path, asked, (text) => {
      const events = eventsIn(text.slice(0, text.lastIndexOf("\n\n") + 2));
      expect(checkOrder(events)).not.toBe("failed");
      return events;
    });
    expect(await stream(server, asked)).toHaveLength(total);
  });

  test("that the engine fails ends as failed", async () => {
    const asked = { ...standard, max_output_tokens: 3000, stream: true };
    const events = eventsIn(await readKilled(server, path, asked));
    expect(checkOrder(events)).toBe("failed");
    const { error, id, store } = responseOf(events);
    expect(error).toEqual({ code: "server_error", message: "The answer failed." });
    expect(store).toBeFalse();
    await expectRefusal(await server.get(`${path}/${id}`), { status: 404 });
    // The engine is back.
    await ask(server);
  });
});

describe("a model that thinks and calls", () => {
  const thought = "I wonder <b>";
  const says = [
    ...["I wond", "er <b>", "</th", "ink>\n\n", "Let me see.\n", "<tool", '_call>\n{"na'],
    ...['me": "patch", "argu', 'ments": {"input": "a\\nb"}}\n</tool_ca', "ll>"],
    ...['\n<tool_call>\n{"name": "sky__rain", ', '"arguments": {"city": "Ro'],
    ...['me", "days": 3}', "}\n</tool_call>"],
  ];
  const taught =
    'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}{% set enable_thinking = true %}' +
    "{% for m in messages %}{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{% endfor %}";
  const rain = {
    type: "function",
    name: "rain",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer" } },
      required: ["city", "days"],
    },
  };
  const tools = [
    { type: "custom", name: "patch" },
    { type: "namespace", name: "sky", description: "The sky.", tools: [rain] },
  ];
  const asked = { tools, max_output_tokens: 100 };
  const server = useTestServer(withDialect({ taught, says }, { args: ["--log-prompts"] }), settled);

  test("has reasoning, a message and calls as items, in order", async () => {
    const { output, status, usage } = await both(server, asked);
    expect(status).toBe("completed");
    expect(usage!.output_tokens_details.reasoning_tokens).toBeGreaterThan(0);
    expect(structuredClone(output)).toMatchObject([
      {
        type: "reasoning",
        id: expect.stringMatching(/^rs_/),
        summary: [],
        content: [{ type: "reasoning_text", text: thought }],
      },
      { type: "message", content: [{ type: "output_text", text: "Let me see." }] },
      {
        type: "custom_tool_call",
        id: expect.stringMatching(/^ctc_/),
        name: "patch",
        input: "a\nb",
      },
      {
        type: "function_call",
        name: "rain",
        namespace: "sky",
        arguments: '{"city": "Rome", "days": 3}',
      },
    ] as never);
    expect(output[0]).not.toHaveProperty("encrypted_content");
  });

  /** The outputs of its calls. */
  const outputsOf = (output: readonly OutputItem[]) =>
    output.flatMap((item) => {
      if (!("call_id" in item)) return [];
      return [{ type: `${item.type}_output`, call_id: item.call_id, output: `of ${item.name}` }];
    });

  test("has all of it in the next prompt, stored or sent again", async () => {
    const include = ["reasoning.encrypted_content"];
    const first = await ask(server, { ...asked, include });
    const outputs = outputsOf(first.output);
    await ask(server, { ...asked, input: outputs, previous_response_id: first.id });
    const prompt = server.prompts.at(-1)!;
    expect(prompt).toContain(`[${thought}]`);
    expect(prompt).toContain('Let me see.{"name": "patch", "arguments": {"input": "a\\nb"}}');
    expect(prompt).toContain('{"name": "sky__rain", "arguments": {"city": "Rome", "days": 3}}');
    expect(prompt).toContain("<|im_start|>tool\nof patch<|im_end|>");
    expect(prompt).toContain("<|im_start|>tool\nof rain<|im_end|>");
    const history = [{ role: "user", content: standard.input }, ...first.output, ...outputs];
    await ask(server, { ...asked, input: history, store: false });
    expect(server.prompts.at(-1)).toBe(prompt);
    // Agents send reasoning back without its content.
    const bare = history.map((item) =>
      "type" in item && item.type === "reasoning" ? { ...item, content: undefined } : item,
    );
    await ask(server, { ...asked, input: bare, store: false });
    expect(server.prompts.at(-1)).toBe(prompt);
  });

  test("makes one call without parallel_tool_calls", async () => {
    const { output } = await ask(server, { ...asked, parallel_tool_calls: false });
    expect(output.map(({ type }) => type)).toEqual(["reasoning", "message", "custom_tool_call"]);
  });

  test("has a valid shape wherever the token limit cuts it off", async () => {
    for (let max_output_tokens = 1; max_output_tokens <= says.length; max_output_tokens++) {
      const { status, output } = await both(server, { ...asked, max_output_tokens });
      expect(status).toBe("incomplete");
      for (const item of output.slice(0, -1)) expect(item.status).toBe("completed");
    }
  });
});

test("a client that waits is told that its response is in progress", async () => {
  await using server = await startTestServer({
    args: ["--max-batch-size", "1"],
    heartbeatSeconds: 0.05,
  });
  const leaving = new AbortController();
  const endless = { prompt: "Never stop.", max_tokens: 4000, ignore_eos: true, stream: true };
  const other = await server.post("/v1/completions", endless, { signal: leaving.signal });
  other.text().catch(() => {});
  const response = await server.post(path, { ...standard, max_output_tokens: 4, stream: true });
  setTimeout(() => leaving.abort(), 300);
  const events = eventsIn(await response.text());
  expect(checkOrder(events)).toBe("incomplete");
  expect(events.slice(0, 4).map(({ type }) => type)).toEqual([
    "response.created",
    "response.in_progress",
    "response.in_progress",
    "response.in_progress",
  ]);
  await server.settled();
});
