// Ollama's package: text, streams, tools, thoughts, structured output, embeddings, errors and aborts.
import { beforeAll, describe, expect, test } from "bun:test";
import { type ChatResponse, type Message, Ollama, type Tool } from "ollama";
import { settled, useTestServer } from "../support/use-server.ts";
import { apiKey, useClientServer } from "./client-server.ts";
import { type Asked, errorIn, testClient } from "./client-suite.ts";
import { expectRoundTrip, functions, maxTokens, question, resultOf, system } from "./round-trip.ts";
import { rome, said, thought, withThinkingModel } from "./thinking-model.ts";

const server = useClientServer();
let client: Ollama;
const clientOf = (host: string, key: string) =>
  new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
beforeAll(() => {
  client = clientOf(server.url, apiKey);
});

const messages: Message[] = [{ role: "user", content: "Say something that is new to me." }];
const options = { temperature: 0, num_predict: 24 };
const standard = { model: "tiny", messages, options };

/** The last line of a stream, with the texts of all. */
function joined(lines: readonly ChatResponse[]): ChatResponse {
  const of = (part: (message: Message) => string | undefined) =>
    lines.map(({ message }) => part(message) ?? "").join("");
  const thinking = of((message) => message.thinking);
  const calls = lines.flatMap(({ message }) => message.tool_calls ?? []);
  const message = {
    role: "assistant",
    content: of(({ content }) => content),
    ...(thinking !== "" && { thinking }),
    ...(calls.length > 0 && { tool_calls: calls }),
  };
  return { ...lines.at(-1)!, message };
}

/** What does not differ from time to time. */
function plain(response: object): object {
  return JSON.parse(
    JSON.stringify(response, (key, value) =>
      /_duration$|^created_at$|^id$/.test(key) ? undefined : value,
    ),
  );
}

describe("Ollama's package", () => {
  test("gets a message, the same one as a stream, with counts and times", async () => {
    const whole = await client.chat(standard);
    expect(whole).toEqual({
      model: "tiny",
      created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
      message: { role: "assistant", content: expect.stringMatching(/./s) },
      done: true,
      done_reason: "length",
      total_duration: expect.any(Number),
      load_duration: expect.any(Number),
      prompt_eval_count: expect.any(Number),
      prompt_eval_duration: expect.any(Number),
      eval_count: 24,
      eval_duration: expect.any(Number),
    } as never);
    const { total_duration: total, eval_duration, prompt_eval_duration, load_duration } = whole;
    expect(total).toBeGreaterThanOrEqual(load_duration + prompt_eval_duration + eval_duration - 3);
    expect(eval_duration).toBeGreaterThan(1000);
    const lines = await Array.fromAsync(await client.chat({ ...standard, stream: true }));
    expect(lines.length).toBeGreaterThan(5);
    expect(lines.map(({ done }) => done)).toEqual([...lines.slice(1).map(() => false), true]);
    expect(plain(joined(lines))).toEqual(plain(whole));
  });

  test("gets an answer to a prompt, and the continuation of a raw one", async () => {
    const asked = { model: "tiny", prompt: messages[0]!.content, options };
    const whole = await client.generate(asked);
    const chat = await client.chat(standard);
    expect(whole.response).toBe(chat.message.content);
    expect(whole.prompt_eval_count).toBe(chat.prompt_eval_count);
    const lines = await Array.fromAsync(await client.generate({ ...asked, stream: true }));
    expect(lines.map(({ response }) => response).join("")).toBe(whole.response!);
    // The rendered chat is the same tokens: its control tokens are tokens.
    const rendered = `<|im_start|>user\n${asked.prompt}<|im_end|>\n<|im_start|>assistant\n`;
    const raw = await client.generate({ ...asked, prompt: rendered, raw: true });
    expect(plain(raw)).toEqual(plain(whole));
  });

  test("counts the tokens that the prompt has", async () => {
    const asked: Message[] = [{ role: "system", content: "Hm." }, ...messages];
    const response = await server.post("/tokenize", { messages: asked });
    const { count } = (await response.json()) as { count: number };
    // The second time it is found in the prefix cache.
    for (const _ of [1, 2]) {
      const counted = await client.chat({ ...standard, messages: asked });
      expect([counted.prompt_eval_count, counted.eval_count]).toEqual([count, 24]);
    }
  });

  test("gets JSON, of any kind or by a schema", async () => {
    const schema = {
      type: "object",
      properties: { ok: { type: "boolean" } },
      required: ["ok"],
      additionalProperties: false,
    };
    const limited = { ...standard, options: { ...options, num_predict: 100 } };
    const { message, done_reason } = await client.chat({ ...limited, format: schema });
    expect(JSON.parse(message.content)).toEqual({ ok: expect.any(Boolean) });
    expect(done_reason).toBe("stop");
    const prompt = messages[0]!.content;
    const generated = await client.generate({ ...limited, prompt, format: schema });
    expect(generated.response).toBe(message.content);
    const any = await client.chat({ ...limited, format: "json", options });
    expect(any.message.content).toStartWith("{");
  });

  test("gets the log-probabilities of tokens", async () => {
    const asked = { ...standard, logprobs: true, top_logprobs: 2 };
    const whole = await client.chat(asked);
    expect(whole.logprobs).toHaveLength(24);
    expect(whole.logprobs![0]).toEqual({
      token: expect.any(String),
      logprob: expect.any(Number),
      bytes: expect.any(Array),
      top_logprobs: [expect.any(Object), expect.any(Object)],
    } as never);
    const lines = await Array.fromAsync(await client.chat({ ...asked, stream: true }));
    expect(lines.flatMap(({ logprobs = [] }) => logprobs)).toEqual(whole.logprobs!);
  });

  test("gets vectors of texts", async () => {
    const { embeddings, prompt_eval_count } = await client.embed({
      model: "tiny",
      input: ["One text", "Another"],
    });
    expect(embeddings.map(({ length }) => length)).toEqual([64, 64]);
    expect(prompt_eval_count).toBe("One textAnother".length);
    const { embedding } = await client.embeddings({ model: "tiny", prompt: "One text" });
    expect(embedding).toEqual(embeddings[0]!);
    const short = await client.embed({ model: "tiny", input: "One text", dimensions: 8 });
    expect(short.embeddings[0]).toHaveLength(8);
    expect((await client.show({ model: "tiny" })).capabilities).toEqual(["embedding"]);
  });

  const refused: [string, () => Promise<unknown>, number, RegExp][] = [
    [
      "a wrong option",
      () => client.chat({ ...standard, options: { temperature: 3 } }),
      400,
      /'options\.temperature'/,
    ],
    [
      "an option that cannot be honoured",
      () => client.chat({ ...standard, options: { mirostat: 2 } }),
      400,
      /'options\.mirostat': only 0/,
    ],
    ["a suffix", () => client.generate({ model: "tiny", prompt: "a", suffix: "b" }), 400, /suffix/],
    [
      "an image",
      () => client.chat({ ...standard, messages: [{ ...messages[0]!, images: ["aGk="] }] }),
      400,
      /'messages\.0\.images': images are not supported/,
    ],
    ["an unknown model", () => client.chat({ ...standard, model: "org/x" }), 404, /not found/],
    [
      "a wrong key",
      () => clientOf(server.url, "sk-wrong").chat(standard),
      401,
      /Incorrect API key|key/,
    ],
    [
      "an endpoint that there is not",
      () => client.copy({ source: "tiny", destination: "other" }),
      404,
      /Unknown request URL/,
    ],
  ];
  test.each(refused)("is refused %s, and says why", async (_, ask, status_code, says) => {
    const error = expect.stringMatching(says);
    expect(await errorIn(ask())).toMatchObject({ name: "ResponseError", status_code, error });
  });

  const bodyOf = ({ seed, maxTokens = 24, stop }: Asked = {}) => ({
    ...standard,
    options: {
      num_predict: maxTokens,
      ...(seed === undefined ? { temperature: 0 } : { temperature: 1, seed }),
      ...(stop && { stop: [stop] }),
    },
  });
  /** Its own abort() only ends streams that have begun. */
  const clientFor = ({ key = apiKey, signal }: Asked = {}) =>
    new Ollama({
      host: server.url,
      headers: { Authorization: `Bearer ${key}` },
      fetch: ((url, init) => fetch(url, { ...init, ...(signal && { signal }) })) as typeof fetch,
    });
  const answerOf = ({ message, done_reason: finish }: ChatResponse) => ({
    text: message.content,
    finish,
  });
  testClient(server, {
    whole: async (asked) => answerOf(await clientFor(asked).chat(bodyOf(asked))),
    async streamed(asked) {
      const lines = await clientFor(asked).chat({ ...bodyOf(asked), stream: true });
      return answerOf(joined(await Array.fromAsync(lines)));
    },
    async leave() {
      // A client of its own: abort ends all of its streams.
      const leaving = clientOf(server.url, apiKey);
      const lines = await leaving.chat({ ...bodyOf({ maxTokens: 3000 }), stream: true });
      let count = 0;
      const read = (async () => {
        for await (const _ of lines) if (++count === 3) leaving.abort();
      })();
      await expect(read).rejects.toThrow(/abort/i);
      expect(count).toBeLessThan(3000);
    },
    errors: {
      limited: { status_code: 429 },
      draining: { status_code: 503 },
      broken: { message: "The answer failed." },
      left: { message: expect.stringMatching(/abort/i) },
    },
    stopped: "stop",
    comesBackMs: false,
  });
});

describe("a model that thinks and calls", () => {
  const tools: Tool[] = functions.map((each) => ({ type: "function", function: each }));
  const limits = { temperature: 0, num_predict: 200 };
  const asked = { model: "tiny", messages, tools, think: true, options: limits };
  const model = useTestServer(withThinkingModel(), settled);
  let reciting: Ollama;
  let prompts: string[];
  beforeAll(() => {
    reciting = new Ollama({ host: model.url });
    prompts = model.prompts;
  });

  const message = {
    role: "assistant",
    content: said,
    thinking: thought,
    tool_calls: [
      { function: { index: 0, name: "now", arguments: {} } },
      { function: { index: 1, name: "get_weather", arguments: rome } },
    ],
  };

  test("thinks, calls two tools at once, and goes on with their results", async () => {
    const whole = await reciting.chat(asked);
    expect(plain(whole)).toMatchObject({ message, done_reason: "stop" });
    expect(plain(whole.message)).toEqual(message);
    const lines = await Array.fromAsync(await reciting.chat({ ...asked, stream: true }));
    expect(plain(joined(lines))).toEqual(plain(whole));
    // A call is told as a whole, in a line of its own.
    expect(lines.flatMap(({ message }) => message.tool_calls?.length ?? [])).toEqual([1, 1]);
    expect(lines.find(({ message }) => message.thinking)?.message.content).toBe("");

    const results: Message[] = [
      { role: "tool", content: "Noon.", tool_name: "now" },
      { role: "tool", content: "Sunny.", tool_name: "get_weather" },
    ];
    const history = [...messages, whole.message, ...results];
    const next = await reciting.chat({ ...asked, messages: history });
    expect(next.message.tool_calls).toHaveLength(2);
    const prompt = prompts.at(-1)!;
    expect(prompt).toContain("[I wonder.]");
    expect(prompt).toContain('Let me see.{"name": "now", "arguments": {}}{"name": "get_weather"');
    expect(prompt).toContain(
      "<|im_start|>tool\nNoon.<|im_end|>\n<|im_start|>tool\nSunny.<|im_end|>",
    );
    // Results have the ids of their calls, which the package does not send with them.
    const ids = whole.message.tool_calls!.map((call) => (call as { id?: string }).id);
    expect(prompt).toContain(`(now ${ids[0]})(get_weather ${ids[1]})`);
    expect(new Set(ids).size).toBe(2);
  });

  test("is told the tokens of both prompts of a round trip", async () => {
    await expectRoundTrip<ChatResponse>(model, {
      async ask(stream, before) {
        const results = (before?.message.tool_calls ?? []).map(({ function: { name } }) => ({
          role: "tool",
          content: resultOf(name),
          tool_name: name,
        }));
        const request = {
          ...asked,
          messages: [
            { role: "system", content: system },
            { role: "user", content: question },
            ...(before ? [before.message, ...results] : []),
          ],
          options: { temperature: 0, num_predict: maxTokens },
        };
        if (!stream) return await reciting.chat(request);
        return joined(await Array.fromAsync(await reciting.chat({ ...request, stream: true })));
      },
      turnOf: ({ message: { content, thinking = "", tool_calls = [] }, prompt_eval_count }) => ({
        thought: thinking,
        said: content,
        calls: tool_calls.map((call) => [call.function.name, call.function.arguments]),
        tokens: prompt_eval_count,
      }),
    });
  });

  test("thinks only if it is asked to, and as much", async () => {
    await reciting.chat({ ...asked, think: false });
    expect(prompts.at(-1)).toEndWith("assistant\n");
    for (const [think, effort] of Object.entries({ low: "low", high: "high", max: "xhigh" })) {
      await reciting.chat({ ...asked, think: think as "low" });
      expect(prompts.at(-1)).toEndWith("<think>\n");
      expect(prompts.at(-1)).toContain(`Think: ${effort}.`);
    }
    const { thinking, response } = await reciting.generate({
      model: "tiny",
      prompt: "Well?",
      think: true,
      options: { ...limits, num_predict: 5 },
    });
    expect([thinking, response]).toEqual(["I wonder.", "Let me see.\n"]);
  });

  test("tells nothing of a call that the token limit cuts off", async () => {
    for (const num_predict of [6, 7, 8, 9, 10, 11]) {
      const cut = { ...asked, options: { ...limits, num_predict } };
      const whole = await reciting.chat(cut);
      const lines = await Array.fromAsync(await reciting.chat({ ...cut, stream: true }));
      expect(plain(joined(lines))).toEqual(plain(whole));
      expect(whole.done_reason).toBe("length");
      expect(whole.message.content.trimEnd()).toBe("Let me see.");
      expect(whole.message.tool_calls?.length ?? 0).toBe(num_predict > 7 ? 1 : 0);
    }
  });
});
