// Ollama's API over HTTP: prompts, what is refused and how, lines of streams, and that nothing is left of
// streams that end early.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  OllamaChatResponse,
  OllamaError,
  OllamaGenerateResponse,
} from "../../../src/api/ollama/generate.ts";
import { SECRET } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { leaveAtEachEvent, readKilled } from "../../support/stream-reads.ts";
import { useTestServer } from "../../support/use-server.ts";

setDefaultTimeout(30_000);
const messages = [{ role: "user", content: "What is it like?" }];
const options = { temperature: 0, num_predict: 12 };

const linesIn = (text: string): object[] =>
  text
    .slice(0, text.lastIndexOf("\n") + 1)
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));

async function refusal(response: Response) {
  const body = await response.text();
  expect(response.headers.get("content-type")).toStartWith("application/json");
  expect(body).not.toContain(SECRET);
  return [response.status, OllamaError.strict().parse(JSON.parse(body)).error] as const;
}

/** A stream that lasts until it is left. */
async function occupy(server: TestServer, signal: AbortSignal): Promise<void> {
  const endless = { prompt: "Never stop.", max_tokens: 4000, ignore_eos: true, stream: true };
  const response = await server.post("/v1/completions", endless, { signal });
  response.text().catch(() => {});
}

describe("Ollama's API", () => {
  const server = useTestServer({ args: ["--log-prompts"] });

  const promptOf = async (path: string, fields: object) => {
    const response = await server.post(path, { stream: false, ...fields });
    expect([response.status, await response.text()]).toMatchObject([200, expect.any(String)]);
    return server.prompts.at(-1)!;
  };
  const one = { options: { num_predict: 1 } };
  const brief = { role: "system", content: "Be brief." };
  const weather = {
    type: "function",
    function: { name: "get_weather", parameters: { type: "object", properties: {} } },
  };
  const call = { name: "get_weather", arguments: { city: "Rome" } };
  const chat = (fields: object) => ["/api/chat", { ...one, messages, ...fields }] as const;
  const generate = (fields: object) => ["/api/generate", { ...one, ...fields }] as const;
  const prompted: [string, readonly [path: string, fields: object], chat: object][] = [
    ["messages", chat({ messages: [brief, ...messages] }), { messages: [brief, ...messages] }],
    [
      "roles in any case",
      chat({ messages: [{ role: "USER", content: "a" }] }),
      { messages: [{ role: "user", content: "a" }] },
    ],
    [
      "a message to be continued",
      chat({ messages: [...messages, { role: "assistant", content: "It is" }] }),
      {
        messages: [...messages, { role: "assistant", content: "It is" }],
        continue_final_message: true,
      },
    ],
    [
      "tools, calls and results",
      chat({
        messages: [
          ...messages,
          { role: "assistant", content: "", tool_calls: [{ function: call }] },
          { role: "tool", content: "sunny", tool_name: "get_weather" },
        ],
        tools: [weather],
      }),
      {
        messages: [
          ...messages,
          {
            role: "assistant",
            content: "",
            tool_calls: [
              {
                id: "a",
                type: "function",
                function: { ...call, arguments: JSON.stringify(call.arguments) },
              },
            ],
          },
          { role: "tool", tool_call_id: "a", content: "sunny" },
        ],
        tools: [weather],
      },
    ],
    ["a prompt", generate({ prompt: messages[0]!.content }), { messages }],
    [
      "a prompt with a message of the system",
      generate({ prompt: messages[0]!.content, system: "Be brief." }),
      { messages: [brief, ...messages] },
    ],
    [
      "control tokens in a prompt, as text",
      generate({ prompt: "<|im_end|>" }),
      { messages: [{ role: "user", content: "<|im_end|>" }] },
    ],
  ];
  test.each(prompted)("has the prompt of OpenAI's API: %s", async (_, [path, fields], asked) => {
    const prompt = await promptOf(path, fields);
    expect(prompt).toBe(await promptOf("/v1/chat/completions", { max_tokens: 1, ...asked }));
  });

  test("takes the control tokens of a raw prompt as tokens, and only of that", async () => {
    const count = async (fields: object) => {
      const response = await server.post("/api/generate", { stream: false, ...one, ...fields });
      return ((await response.json()) as OllamaGenerateResponse).prompt_eval_count;
    };
    expect(await count({ prompt: "a<|im_end|>b", raw: true })).toBe(3);
    // The template has the start token already.
    expect(await count({ prompt: "<|im_start|>a", raw: true })).toBe(2);
    const chatted = (await count({ prompt: "a<|im_end|>b" }))! - (await count({ prompt: "ab" }))!;
    expect(chatted).toBe("<|im_end|>".length);
  });

  test("takes what clients send, whether or not it has an effect", async () => {
    const response = await server.post("/api/chat", {
      model: "tiny:latest",
      messages: [{ role: "user", content: "Hi", images: [], tool_calls: null }],
      stream: false,
      format: "",
      tools: [],
      keep_alive: "1h30m",
      think: null,
      truncate: null,
      options: {
        ...{ num_predict: 2, seed: -1, top_k: 40, top_p: 0.9, min_p: 0, repeat_penalty: 1.1 },
        ...{ presence_penalty: 0, frequency_penalty: 0, stop: "never", num_ctx: 4096 },
        ...{ num_gpu: 99, num_thread: 8, num_batch: 512, num_keep: 4, use_mmap: true, numa: false },
        ...{ repeat_last_n: -1, typical_p: 1, tfs_z: 1, mirostat: 0, penalize_newline: true },
      },
    });
    expect([response.status, await response.json()]).toMatchObject([200, { eval_count: 2 }]);
  });

  test("streams unless it is told not to", async () => {
    for (const [path, fields] of [chat({ options }), generate({ prompt: "Hi", options })]) {
      const response = await server.post(path, fields);
      expect(response.headers.get("content-type")).toBe("application/x-ndjson");
      const lines = linesIn(await response.text());
      expect(lines.length).toBeGreaterThan(2);
      const schema = path === "/api/chat" ? OllamaChatResponse : OllamaGenerateResponse;
      for (const line of lines) schema.strict().parse(line);
    }
  });

  const inOptions = (name: string, value: unknown) => chat({ options: { [name]: value } });
  const wrong: [says: string, asked: readonly [string, object]][] = [
    ["'messages.0.role'", chat({ messages: [{ role: SECRET, content: "a" }] })],
    ["'messages.0.content'", chat({ messages: [{ role: "user", content: [SECRET] }] })],
    ["'messages.0.images': images are not", chat({ messages: [{ role: "user", images: ["a"] }] })],
    ["'images': images are not", generate({ prompt: "a", images: ["a"] })],
    ["'suffix': not supported", generate({ prompt: "a", suffix: SECRET })],
    ["'template': not supported", generate({ prompt: "a", template: SECRET })],
    ["'context': use /api/chat", generate({ prompt: "a", context: [1, 2] })],
    ["'system': not allowed together with raw", generate({ prompt: "a", system: "b", raw: true })],
    ["'format': expected json or a JSON schema", chat({ format: SECRET })],
    ["'format': expected json or a JSON schema", chat({ format: 5 })],
    ["'format'", chat({ format: { $ref: "#/x" } })],
    ["'think': expected true", chat({ think: SECRET })],
    ["'keep_alive': expected seconds", chat({ keep_alive: SECRET })],
    ["'keep_alive': expected seconds", chat({ keep_alive: "5" })],
    ["'truncate': prompts are not truncated", chat({ truncate: true })],
    ["'shift'", chat({ shift: true })],
    ["'stream'", chat({ stream: "yes" })],
    ["'top_logprobs'", chat({ logprobs: true, top_logprobs: 21 })],
    ["'tools.0.type'", chat({ tools: [{ type: SECRET }] })],
    ["'options'", chat({ options: [] })],
    ["'options.num_predict'", inOptions("num_predict", -3)],
    ["'options.num_predict'", inOptions("num_predict", 1.5)],
    ["'options.temperature'", inOptions("temperature", -1)],
    ["'options.top_p'", inOptions("top_p", 2)],
    ["'options.top_k'", inOptions("top_k", "40")],
    ["'options.seed'", inOptions("seed", 0.5)],
    ["'options.stop'", inOptions("stop", Array(65).fill("a"))],
    ["'options.stop", inOptions("stop", [""])],
    ["'options.num_ctx': expected at most 4096 tokens", inOptions("num_ctx", 4097)],
    ["'options.repeat_last_n': only -1", inOptions("repeat_last_n", 64)],
    ["'options.typical_p': only 1", inOptions("typical_p", 0.5)],
    ["'options.tfs_z': only 1", inOptions("tfs_z", 0.5)],
    ["'options.mirostat': only 0", inOptions("mirostat", 1)],
    ["'options.penalize_newline': only true", inOptions("penalize_newline", false)],
    ["maximum context length is 4096 tokens", generate({ prompt: "x".repeat(5000) })],
    ["Missing required parameter: 'input'", ["/api/embed", {}]],
    ["'input': expected a string or strings", ["/api/embed", { input: [1, 2] }]],
    ["'truncate': texts are not truncated", ["/api/embed", { input: "a", truncate: true }]],
    ["is not an embedding model", ["/api/embed", { input: "a" }]],
    ["Missing required parameter: 'prompt'", ["/api/embeddings", {}]],
    ["Missing required parameter: 'model'", ["/api/show", {}]],
    ["The body is not valid JSON", ["/api/chat", "{" as never]],
  ];
  test.each(wrong)("refuses by name: %s", async (says, [path, fields]) => {
    const refused = await refusal(await server.post(path, fields));
    expect(refused).toEqual([400, expect.stringContaining(says)]);
  });

  test("refuses what there is not in its own words", async () => {
    for (const model of [`org/${SECRET}`, "../x", "llama3.2"]) {
      for (const path of ["/api/chat", "/api/generate", "/api/show"]) {
        const response = await server.post(path, { model, messages, prompt: "a" });
        expect(await refusal(response)).toEqual([404, expect.stringContaining("model not found")]);
      }
    }
    const unknown = await server.post("/api/create", { model: "a" });
    expect(await refusal(unknown)).toEqual([404, expect.stringContaining("Unknown request URL")]);
    const form = await server.post("/api/chat", "a=b", {
      headers: { "content-type": "application/x-www-form-urlencoded" },
    });
    expect((await refusal(form))[0]).toBe(415);
    expect((await refusal(await server.get("/api/chat")))[0]).toBe(405);
  });

  const streams = [
    ["/api/chat", OllamaChatResponse, { messages }],
    ["/api/generate", OllamaGenerateResponse, { prompt: "Once upon" }],
  ] as const;
  test.each(streams)("%s cut at every line leaves nothing", async (path, schema, fields) => {
    const total = await leaveAtEachEvent(server, path, { ...fields, options }, (text) =>
      linesIn(text).map((line) => schema.strict().parse(line)),
    );
    expect(total).toBeGreaterThan(4);
  });

  test.each(streams)(
    "%s that the engine fails ends with an error",
    async (path, schema, fields) => {
      const asked = { ...fields, options: { temperature: 0, num_predict: 3000 } };
      const lines = linesIn(await readKilled(server, path, asked));
      expect(lines.at(-1)).toEqual({ error: "The answer failed." });
      for (const line of lines.slice(0, -1)) expect(schema.strict().parse(line).done).toBe(false);
      // The engine is back.
      await promptOf(...chat({}));
    },
  );
});

test("a client that waits gets empty lines", async () => {
  await using server = await startTestServer({
    args: ["--max-batch-size", "1"],
    heartbeatSeconds: 0.05,
  });
  const leaving = new AbortController();
  await occupy(server, leaving.signal);
  const { body } = await server.post("/api/chat", { messages, options });
  let text = "";
  const decoder = new TextDecoder();
  for await (const bytes of body!) {
    text += decoder.decode(bytes, { stream: true });
    if (linesIn(text).length === 2) leaving.abort();
  }
  const lines = linesIn(text).map((line) => OllamaChatResponse.strict().parse(line));
  for (const { message, done } of lines.slice(0, 2)) {
    expect([message, done]).toEqual([{ role: "assistant", content: "" }, false]);
  }
  expect(lines.at(-1)).toMatchObject({ done: true, eval_count: 12 });
  await server.settled();
});

describe("keep_alive", () => {
  const server = useTestServer(
    { args: ["--api-key", "sk-owner"], keys: { keys: [keyEntry("guest", "sk-guest")] } },
    // A model that is unloaded has no gauges.
    async () => {},
  );

  const post = (path: string, fields: object, key = "sk-owner") =>
    server.post(
      path,
      { stream: false, ...fields },
      { headers: { authorization: `Bearer ${key}` } },
    );
  const expiries = async () => {
    const response = await server.get("/api/ps");
    const { models } = (await response.json()) as { models: { expires_at: string }[] };
    return models.map(({ expires_at }) => Date.parse(expires_at) - Date.now());
  };
  const forever = Date.parse("9999-01-01") - Date.now();

  test("says how long a model stays loaded from then on, and is asked without a word too", async () => {
    expect((await expiries())[0]).toBeGreaterThan(forever);
    const load = await post("/api/chat", { keep_alive: "2h" });
    expect(await load.json()).toEqual({
      model: "default",
      created_at: expect.any(String),
      message: { role: "assistant", content: "" },
      done: true,
      done_reason: "load",
    });
    expect((await expiries())[0]).toBeWithin(7_100_000, 7_200_001);
    // It stays so.
    await post("/api/chat", { messages, options });
    expect((await expiries())[0]).toBeWithin(7_100_000, 7_200_001);
    await post("/api/generate", { prompt: "Hi", options, keep_alive: 60 });
    expect((await expiries())[0]).toBeWithin(50_000, 60_001);
    await post("/api/chat", { messages, options, keep_alive: -1 });
    expect((await expiries())[0]).toBeGreaterThan(forever);
    // Longer than a timer can wait.
    await post("/api/chat", { messages, options, keep_alive: "10000h" });
    expect(await expiries()).toEqual([expect.any(Number)]);
    await Bun.sleep(20);
    expect(await expiries()).toEqual([expect.any(Number)]);
  });

  test("of 0 unloads the model after the answer, or at once", async () => {
    const answered = await post("/api/chat", { messages, options, keep_alive: 0 });
    expect(await answered.json()).toMatchObject({ eval_count: 12 });
    while ((await expiries()).length > 0) await Bun.sleep(5);
    await post("/api/generate", {});
    expect((await expiries())[0]).toBeGreaterThan(forever);
    const unload = await post("/api/generate", { keep_alive: "0s" });
    expect(await unload.json()).toMatchObject({ response: "", done: true, done_reason: "unload" });
    expect(await expiries()).toEqual([]);
  });

  test("is not for keys that do not manage the server", async () => {
    await post("/api/chat", { keep_alive: "2h" });
    const guest = await post("/api/chat", { messages, options, keep_alive: 0 }, "sk-guest");
    expect(guest.status).toBe(200);
    expect((await expiries())[0]).toBeWithin(7_100_000, 7_200_001);
    const unload = await post("/api/chat", { keep_alive: 0 }, "sk-guest");
    expect(await refusal(unload)).toEqual([403, "This key may not manage the server."]);
    expect(await expiries()).toHaveLength(1);
  });

  test("does not unload a model that is answering", async () => {
    const leaving = new AbortController();
    await occupy(server, leaving.signal);
    expect(await refusal(await post("/api/chat", { keep_alive: 0 }))).toEqual([
      409,
      "The model is answering requests.",
    ]);
    leaving.abort();
    await server.settled();
  });
});
