// /tokenize and /detokenize: results, limits, and draining.
import { describe, expect, test } from "bun:test";
import { ChatResponse } from "../../../src/api/openai/chat.ts";
import { TokenizeResponse } from "../../../src/api/openai/tokenize.ts";
import { expectRefusal } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer } from "../../support/server.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

const KEY = "sk-mlx-key-of-alice";
const countedKeys = new Map(
  [
    "of a text that is counted",
    "of a text that has too many",
    "that are decoded",
    "of a prompt that is too long",
    "of a prompt, once",
  ].map((name, i) => [name, `sk-mlx-key-of-counted-${i}`]),
);

const alice = keyEntry("alice", KEY, { limits: { requests_per_minute: 2 } });
const counted = Array.from(countedKeys.values(), (key, i) =>
  keyEntry(`counted ${i}`, key, { limits: { tokens_per_minute: 600 } }),
);
const server = useTestServer({ keys: { keys: [alice, ...counted] } }, settled);

const messages = [{ role: "user", content: "What is the weather?" }];

describe("the tokens of a chat", () => {
  const tool = (name: string) => ({
    type: "function",
    function: { name, description: "The weather.", parameters: { properties: { city: {} } } },
  });

  async function countOf(request: object): Promise<number> {
    const response = await server.post("/tokenize", { messages, ...request });
    expect(response.status).toBe(200);
    return TokenizeResponse.parse(await response.json()).count;
  }

  test("are those of its prompt, including its tools", async () => {
    const tools = [tool("weather"), tool("forecast")];
    for (const request of [{}, { tools: [] }, { tools }]) {
      const asked = { messages, max_tokens: 1, ...request };
      const answer = await server.post("/v1/chat/completions", asked);
      const { usage } = ChatResponse.parse(await answer.json());
      expect(await countOf(request)).toBe(usage.prompt_tokens);
    }
    expect(await countOf({ tools })).toBeGreaterThan(await countOf({}));
  });

  test("are rejected if the chat's tools would be", async () => {
    const tools = [tool("weather"), tool("weather")];
    const refused = await server.post("/tokenize", { messages, tools });
    await expectRefusal(refused, { status: 400, param: "tools" });
  });

  test("have no special tokens besides the template's", async () => {
    const add = async (asked: object) => await server.post("/tokenize", asked);
    await expectRefusal(await add({ messages, add_special_tokens: true }), {
      status: 400,
      param: "add_special_tokens",
      code: "unsupported_parameter",
    });
    expect(await countOf({ add_special_tokens: false })).toBe(await countOf({}));
    expect((await add({ prompt: "a", add_special_tokens: true })).status).toBe(200);
  });
});

test("/tokenize and /detokenize count against the key's requests", async () => {
  const headers = { authorization: `Bearer ${KEY}` };
  const tokenized = await server.post("/tokenize", { prompt: "a" }, { headers });
  expect(tokenized.headers.get("x-ratelimit-remaining-requests")).toBe("1");
  expect((await server.post("/detokenize", { tokens: [97] }, { headers })).status).toBe(200);
  for (const [path, body] of [
    ["/tokenize", { prompt: "a" }],
    ["/detokenize", { tokens: [97] }],
  ] as const) {
    const refused = await server.post(path, body, { headers });
    await expectRefusal(refused, { status: 429, code: "rate_limit_exceeded" });
  }
});

describe("tokens are charged to the key", () => {
  const long = "a b ".repeat(10_000);

  test.each([
    ["of a text that is counted", "/tokenize", { prompt: long }, 40_000],
    ["of a text that has too many", "/tokenize", { prompt: "a".repeat(140_000) }, 131_072],
    ["that are decoded", "/detokenize", { tokens: Array(40_000).fill(97) }, 40_000],
    ["of a prompt that is too long", "/v1/completions", { prompt: long }, 8192],
    ["of a prompt, once", "/v1/completions", { prompt: "a".repeat(2000), max_tokens: 1 }, 2001],
  ])("%s", async (name, path, body, tokens) => {
    const headers = { authorization: `Bearer ${countedKeys.get(name)}` };
    const response = await server.post(path, body, { headers });
    await response.text();
    // The time until the bucket is full again tells what was taken: one token takes 100 ms.
    const [, hours = 0, minutes = 0, seconds] = /^(?:(\d+)h)?(?:(\d+)m)?([\d.]+)s$/.exec(
      response.headers.get("x-ratelimit-reset-tokens")!,
    )!;
    const charged = 10 * (3600 * Number(hours) + 60 * Number(minutes) + Number(seconds));
    // A text with too many is encoded a little further.
    expect(charged).toBeGreaterThan(tokens * 0.99 - 10);
    expect(charged).toBeLessThan(tokens * 1.5);
  });
});

test("a long text's tokens come back in full, with the text of each, and as the text again", async () => {
  const prompt = 'a"中 \n'.repeat(12_000);
  const response = await server.post("/tokenize", { prompt, return_token_strs: true });
  const { count, tokens, token_strs } = TokenizeResponse.parse(await response.json());
  expect([tokens.length, token_strs!.length]).toEqual([count, count]);
  const ids = (await server.ready).text.tokenizer.encode(prompt, { controlTokens: "text" });
  expect(tokens).toEqual(ids);
  const back = await server.post("/detokenize", { tokens });
  expect(await back.json()).toEqual({ prompt });
});

test("a draining server rejects tokenization and loading of models", async () => {
  const ending = await startTestServer({ args: ["--drain-timeout", "60s"] });
  const endless = { prompt: "a", max_tokens: 4000, ignore_eos: true, stream: true };
  const stream = await ending.post("/v1/completions", endless);
  const ended = ending.stop();
  for (const [path, body] of [
    ["/tokenize", { prompt: "a" }],
    ["/detokenize", { tokens: [97] }],
    ["/models/load", { model: "default" }],
  ] as const) {
    const refused = await ending.post(path, body);
    expect(refused.headers.get("retry-after")).toBe("1");
    await expectRefusal(refused, { status: 503, code: "draining" });
  }
  await stream.body!.cancel();
  await ended;
}, 30_000);
