// Invalid requests: each is rejected with the name of its parameter, and other clients are not affected.
import { describe, expect, test } from "bun:test";
import { writeChatModel } from "../../support/chat-model.ts";
import { expectRefusal, SECRET } from "../../support/fault-checks.ts";
import { useTestServer } from "../../support/use-server.ts";

let model: string;
const server = useTestServer({
  args: ["--block-pool-size", "16"],
  model(folder) {
    model = folder;
    writeChatModel(folder);
  },
});

const chatPath = "/v1/chat/completions";
const paths = [chatPath, "/v1/completions", "/v1/batch/chat/completions", "/v1/batch/completions"];
const messages = [{ role: "user", content: SECRET }];

const post = (path: string, body: unknown, headers = {}) => server.post(path, body, { headers });

/** The same with streaming: an HTTP status, not an event. */
async function expectRefused(
  path: string,
  body: object,
  expected: Parameters<typeof expectRefusal>[1],
): Promise<void> {
  for (const stream of [false, true]) {
    await expectRefusal(await post(path, { ...body, stream }), expected);
  }
}

describe("a body that is not a JSON object", () => {
  const bodies = {
    "is not there": "",
    "is white space": "  \n",
    "is half an object": `{"prompt": "${SECRET}`,
    "is a word": SECRET,
    "is an array": `["${SECRET}"]`,
    "is null": "null",
    "is a number": "1",
    "is a string": `"${SECRET}"`,
    "has a number that JSON does not know": `{"prompt": "${SECRET}", "temperature": NaN}`,
    "has two objects": "{}{}",
    "has bytes that are no UTF-8": new Uint8Array([...Buffer.from('{"a": "'), 0xff, 0x22, 0x7d]),
  };

  test.each(Object.entries(bodies))("%s", async (_, body) => {
    const others = ["/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize"];
    for (const path of [...paths, ...others, "/models/load"]) {
      await expectRefusal(await server.post(path, "", { body }), { status: 400, param: null });
    }
  });

  test("is of another type", async () => {
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "", "json"]) {
      for (const path of [...paths, "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize"]) {
        const answer = await post(path, { prompt: SECRET }, { "content-type": type });
        await expectRefusal(answer, { status: 415 });
      }
    }
  });
});

describe("a prompt that is too long", () => {
  const long = `${SECRET} `.repeat(1000);
  const tooLong = { status: 400, code: "context_length_exceeded" };

  test("for the context or for the whole block pool is rejected before any step", async () => {
    const steps = await server.metric("mlx_serve_step_seconds_count");
    const content = [{ role: "user", content: long }];
    await expectRefused(chatPath, { messages: content }, { ...tooLong, param: "messages" });
    for (const prompt of [long, Array(5000).fill(65), Array(512).fill(65), [Array(513).fill(65)]]) {
      await expectRefused("/v1/completions", { prompt }, { ...tooLong, param: "prompt" });
    }
    expect(await server.metric("mlx_serve_step_seconds_count")).toBe(steps);
    // One token less leaves room for one generated token.
    const answer = await post("/v1/completions", { prompt: Array(511).fill(65), max_tokens: 9 });
    expect(((await answer.json()) as { usage: object }).usage).toMatchObject({
      completion_tokens: 1,
    });
  });
});

describe("a parameter out of range", () => {
  /** As JSON text, as JavaScript cannot express all of it. */
  const wrong: Record<string, string[]> = {
    temperature: ["1e309", "-1", "-1e309", "2.5", '"hot"', "[1]", "true"],
    top_p: ["0", "2", "-0.5", "1e309", '"1"'],
    top_k: ["-2", "1.5", "1e309", '"5"'],
    min_p: ["-0.1", "1.1", "1e309"],
    frequency_penalty: ["-2.1", "2.1", "1e309", '"1"'],
    presence_penalty: ["-2.1", "2.1", "1e309"],
    repetition_penalty: ["0", "-1", "1e309"],
    n: ["0", "1e9", "-1", "1.5", "129", '"1"'],
    max_tokens: ["0", "-1", "1.5", "9223372036854775808", "1e309", '"9"'],
    min_tokens: ["-1", "1.5", "1e309"],
    seed: ["1.5", "9223372036854775808", "1e309", '"7"', "{}"],
    stop: ["5", '""', '[""]', "[5]", "[null]", "{}", "true"],
    stop_token_ids: ["5", "[-1]", "[1.5]", "[320]", "[4294967296]", '["5"]'],
    logit_bias: [
      "5",
      "[1]",
      '{"1": 101}',
      '{"1": -101}',
      '{"1": "2"}',
      '{"1": 1e309}',
      '{"320": 1}',
      '{"-1": 1}',
      '{"1.5": 1}',
      `{"${SECRET}": 1}`,
      `{"${SECRET}": 1000}`,
    ],
    stream: ['"yes"', "1"],
    stream_options: ["5", '{"include_usage": 1}'],
    ignore_eos: ["1"],
    service_tier: [`"${SECRET}"`],
    model: ["5", "[]", `"${SECRET.repeat(100)}"`],
    cache_salt: ["5"],
    return_token_ids: ["5"],
  };

  test.each(Object.entries(wrong))("%s", async (param, values) => {
    for (const path of [chatPath, "/v1/completions"]) {
      for (const value of values) {
        const prompt = { prompt: SECRET, messages };
        const body = `${JSON.stringify(prompt).slice(0, -1)}, "${param}": ${value}}`;
        const error = await expectRefusal(await post(path, body), { status: 400 });
        expect([value, error.param?.split(".")[0]]).toEqual([value, param]);
      }
    }
  });

  test("of chats only", async () => {
    const own = {
      top_logprobs: [21, -1, 1.5, "2", 3],
      logprobs: [5, "true"],
      max_completion_tokens: [0, -1, 1.5, 2 ** 63],
      response_format: [{ type: SECRET }, "json", {}],
      tools: [[{ type: "function" }], "x"],
      tool_choice: ["required", { type: "function" }],
      functions: [[]],
      reasoning_effort: [SECRET],
      chat_template_kwargs: [[], 5, Object.fromEntries([...Array(300).keys()].entries())],
      metadata: [5],
    };
    for (const [param, values] of Object.entries(own)) {
      for (const value of values) {
        const answer = await post(chatPath, { messages, [param]: value });
        const error = await expectRefusal(answer, { status: 400 });
        expect([value, error.param?.split(".")[0]]).toEqual([value, param]);
      }
    }
  });

  test("but not at the limit itself", async () => {
    const all = (bias: number) =>
      Object.fromEntries(Array.from({ length: 320 }, (_, id) => [id, bias]));
    const safe = Number.MAX_SAFE_INTEGER;
    const edges = {
      temperature: [0, 2, 1e-300],
      top_p: [1, 1e-300],
      top_k: [-1, 0, 1, 320, 321, 2 ** 32, safe],
      min_p: [0, 1, 1e-300],
      frequency_penalty: [2, -2],
      presence_penalty: [2, -2],
      repetition_penalty: [0.01, 10],
      n: [1, 128],
      max_tokens: [1, safe],
      seed: [0, -1, 2 ** 32, safe, -safe],
      stop: ["a".repeat(1024), Array.from({ length: 16 }, (_, i) => `${i}`.repeat(500)), "\0"],
      stop_token_ids: [[], [0, 319], Array.from({ length: 64 }, (_, i) => i)],
      logit_bias: [{}, all(100), all(-100)],
    };
    for (const [param, values] of Object.entries(edges)) {
      for (const value of values) {
        const body = { prompt: Array(500).fill(65), max_tokens: 3, n: 2, [param]: value };
        const { status } = await post("/v1/completions", body);
        expect([param, value, status]).toEqual([param, value, 200]);
      }
    }
  });

  test("token ids and prompts", async () => {
    const prompts = [
      "5",
      "null",
      "{}",
      "[]",
      '""',
      '[""]',
      "[[]]",
      "[-1]",
      "[1.5]",
      "[320]",
      "[4294967295]",
      "[4294967296]",
      "[1e309]",
      '[1, "2"]',
      '["1", 2]',
      "[[1], [320]]",
      "[[1], 2]",
      "[[[1]]]",
      "[null]",
      "[true]",
      "[{}]",
    ];
    for (const value of prompts) {
      const asked: [string, string][] = [
        ["/v1/completions", "prompt"],
        ["/v1/embeddings", "input"],
      ];
      for (const [path, param] of asked) {
        const error = await expectRefusal(await post(path, `{"${param}": ${value}}`), {
          status: 400,
        });
        // The tiny model makes no embeddings; that error may come first.
        const named = error.code === "not_an_embedder" ? "model" : param;
        expect([value, error.param?.split(".")[0]]).toEqual([value, named]);
      }
    }
    for (const value of ["5", "[-1]", "[320]", '["a"]', "null", "[1.5]"]) {
      await expectRefusal(await post("/detokenize", `{"tokens": ${value}}`), { status: 400 });
    }
  });
});

describe("messages", () => {
  const user = { role: "user", content: SECRET };
  const wrong: Record<string, unknown> = {
    "that are missing": undefined,
    "that are null": null,
    "that are a string": SECRET,
    "that are an object": user,
    "without any": [],
    "of null": [null],
    "of strings": [SECRET],
    "of arrays": [[user]],
    "of an unknown role": [{ role: SECRET, content: SECRET }],
    "without a role": [{ content: SECRET }],
    "with a number for a role": [{ role: 5, content: SECRET }],
    "without content": [{ role: "user" }],
    "with null for content": [{ role: "user", content: null }],
    "with a number for content": [user, { role: "user", content: 5 }],
    "with an object for content": [{ role: "user", content: { text: SECRET } }],
    "with no parts": [{ role: "user", content: [] }],
    "with a part of null": [{ role: "user", content: [null] }],
    "with a part that is a string": [{ role: "user", content: [SECRET] }],
    "with a picture": [{ role: "user", content: [{ type: "image_url", image_url: SECRET }] }],
    "with a text that is none": [{ role: "user", content: [{ type: "text", text: 5 }] }],
    "of the assistant without anything": [user, { role: "assistant" }],
    "of a tool that nobody called": [user, { role: "tool", content: SECRET }],
    "with wrong calls": [user, { role: "assistant", tool_calls: [{ function: SECRET }] }],
  };

  test.each(Object.entries(wrong))("%s", async (_, value) => {
    for (const path of [chatPath, "/v1/batch/chat/completions"]) {
      await expectRefused(path, { messages: value }, { status: 400 });
    }
    const { param } = await expectRefusal(await post(chatPath, { messages: value }), {
      status: 400,
    });
    expect(param).toStartWith("messages");
  });
});

test("ten thousand stop strings, or one of a megabyte, are rejected", async () => {
  const many = Array.from({ length: 10_000 }, (_, i) => `${SECRET}${i}`);
  for (const stop of [many, SECRET.repeat(120_000), [SECRET.repeat(120_000)], many.slice(0, 17)]) {
    for (const path of paths) {
      const answer = await post(path, { prompt: SECRET, messages, stop });
      const { param } = await expectRefusal(answer, { status: 400 });
      expect(param).toMatch(/^stop/);
    }
  }
});

describe("a model name that does not exist", () => {
  test("is 404 on every route, whatever it looks like", async () => {
    // There is a model at this path, but paths are not model names.
    const names = [
      "../../x",
      model,
      `..${model}`,
      `../../../../../../..${model}`,
      `file://${model}`,
      `${model}/model.safetensors`,
      "/etc/passwd",
      "~/x",
      ".",
      "..",
      "./",
      "a/../b",
      "org/name/more",
      "org\\name",
      "..%2f..%2fx",
      encodeURIComponent(model),
      "tiny\0",
      "\0",
      "tiny\n",
      " tiny",
      "TINY",
      SECRET,
      "x".repeat(512),
      "constructor",
      "__proto__",
      "\ud800",
      "\u202eynit",
    ];
    const missing = { status: 404, param: "model", code: "model_not_found" };
    for (const name of names) {
      await expectRefused(chatPath, { model: name, messages }, missing);
      for (const where of ["/v1/completions", "/tokenize"]) {
        await expectRefusal(await post(where, { model: name, prompt: SECRET }), missing);
      }
      await expectRefusal(await post("/v1/embeddings", { model: name, input: SECRET }), missing);
      await expectRefusal(await post("/detokenize", { model: name, tokens: [1] }), missing);
      for (const where of ["/models/load", "/models/unload"]) {
        await expectRefusal(await post(where, { model: name }), missing);
      }
      const found = await server.get(`/v1/models/${encodeURIComponent(name.toWellFormed())}`);
      expect([name, found.status]).toEqual([name, 404]);
    }
    const long = await post(chatPath, { model: "x".repeat(513), messages });
    await expectRefusal(long, { status: 400, param: "model" });
  });

  test("that is empty means the default", async () => {
    for (const name of ["", null, undefined, "default"]) {
      const answer = await post(chatPath, { model: name, messages, max_tokens: 1 });
      expect(answer.status).toBe(200);
    }
  });
});
