// Responses to generation requests: their shape and fields, streamed and whole.
import { describe, expect, test } from "bun:test";
import { ChatChunk, ChatResponse } from "../../../src/api/openai/chat.ts";
import { CompletionChunk, CompletionResponse } from "../../../src/api/openai/completions.ts";
import { EmbeddingResponse } from "../../../src/api/openai/embeddings.ts";
import { makeApp } from "../../../src/http/app.ts";
import { expectRefusal } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { events, startTestServer } from "../../support/server.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

const KEY = "sk-mlx-key-of-alice";

const alice = keyEntry("alice", KEY, { limits: { tokens_per_minute: 2 } });
const server = useTestServer({ pooling: "lasttoken", keys: { keys: [alice] } }, settled);

const messages = [{ role: "user", content: "Say something." }];
const greedy = { messages, max_tokens: 24, temperature: 0 };

async function chat(request: object): Promise<ChatResponse> {
  const response = await server.post("/v1/chat/completions", request);
  expect(response.status).toBe(200);
  return ChatResponse.parse(await response.json());
}

async function chatChunks(request: object): Promise<ChatChunk[]> {
  const response = await server.post("/v1/chat/completions", { ...request, stream: true });
  expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
  const all = await events(response);
  expect(all.at(-1)).toBe("[DONE]");
  return all.slice(0, -1).map((event) => ChatChunk.parse(event));
}

async function complete(request: object): Promise<CompletionResponse> {
  const response = await server.post("/v1/completions", { temperature: 0, ...request });
  expect(response.status).toBe(200);
  return CompletionResponse.parse(await response.json());
}

const textOf = (chunks: readonly ChatChunk[], index = 0) =>
  chunks
    .flatMap(({ choices }) => choices)
    .filter((choice) => choice.index === index)
    .map(({ delta }) => delta.content ?? "")
    .join("");

describe("a chat", () => {
  test("is answered without streaming", async () => {
    const answer = await chat(greedy);
    const [choice] = answer.choices;
    expect(answer.choices.length).toBe(1);
    expect(choice).toMatchObject({ index: 0, finish_reason: "length", logprobs: null });
    expect(choice!.message).toMatchObject({ role: "assistant", refusal: null });
    expect(answer.model).toBe("tiny");
    expect(answer.usage).toMatchObject({ completion_tokens: 24 });
    expect(answer.usage.total_tokens).toBe(answer.usage.prompt_tokens + 24);
  });

  test("is answered as a stream of the same text, with the role once", async () => {
    const whole = await chat(greedy);
    const chunks = await chatChunks(greedy);
    expect(textOf(chunks)).toBe(whole.choices[0]!.message.content!);
    expect(new Set(chunks.map(({ id, created, model }) => `${id} ${created} ${model}`)).size).toBe(
      1,
    );
    const deltas = chunks.map(({ choices }) => choices[0]!.delta);
    expect(deltas.filter(({ role }) => role !== undefined)).toEqual([
      { role: "assistant", content: "" },
    ]);
    const reasons = chunks.map(({ choices }) => choices[0]!.finish_reason);
    expect(reasons.slice(0, -1).every((reason) => reason === null)).toBe(true);
    expect(reasons.at(-1)).toBe("length");
    expect(chunks.at(-1)!.choices[0]!.delta).toEqual({});
    expect(chunks.every(({ usage }) => usage === undefined)).toBe(true);
  });

  test("sends its usage in one more event, if asked", async () => {
    const stream_options = { include_usage: true };
    const chunks = await chatChunks({ ...greedy, stream_options });
    expect(chunks.slice(0, -1).every(({ usage }) => usage === null)).toBe(true);
    expect(chunks.at(-1)!.choices).toEqual([]);
    const { usage } = await chat(greedy);
    const { prompt_tokens_details: _, ...counts } = usage;
    expect(chunks.at(-1)!.usage).toMatchObject(counts);
  });

  test("has cached tokens the second time, but not with another salt", async () => {
    const long = { ...greedy, messages: [{ role: "user", content: "x".repeat(100) }] };
    const cached = async (more: object) =>
      (await chat({ ...long, ...more })).usage.prompt_tokens_details.cached_tokens;
    expect(await cached({})).toBe(0);
    expect(await cached({})).toBe(96);
    expect(await cached({ cache_salt: "mine" })).toBe(0);
    expect(await cached({ cache_salt: "mine" })).toBe(96);
  });

  test("has a header that all turns of it share, and no other chat", async () => {
    const hashOf = async (body: object) => {
      const response = await server.post("/v1/chat/completions", { max_tokens: 1, ...body });
      await response.text();
      return response.headers.get("x-prefix-hash");
    };
    const [system, user] = [{ role: "system", content: "Be brief." }, messages[0]!];
    const first = await hashOf({ messages: [system, user] });
    expect(first).toMatch(/^[0-9a-f]{32}$/);
    const answer = { role: "assistant", content: "Something." };
    const turns = [system, user, answer, { role: "user", content: "More." }];
    expect(await hashOf({ messages: turns })).toBe(first);
    expect(await hashOf({ messages: turns, stream: true })).toBe(first);
    const parts = { role: "user", content: [{ type: "text", text: user.content }] };
    expect(await hashOf({ messages: [system, parts] })).toBe(first);
    expect(await hashOf({ messages: [user] })).not.toBe(first);
    expect(await hashOf({ messages: [system, { ...user, content: "Say." }] })).not.toBe(first);
  });

  test("has n answers, each the same alone and in a stream", async () => {
    const request = { ...greedy, temperature: 1, seed: 7, n: 3 };
    const whole = await chat(request);
    const texts = whole.choices.map(({ message }) => message.content!);
    expect(whole.choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(new Set(texts).size).toBe(3);
    const chunks = await chatChunks(request);
    expect([0, 1, 2].map((index) => textOf(chunks, index))).toEqual(texts);
    expect(whole.usage.completion_tokens).toBe(72);
    const [alone] = (await chat({ ...request, n: 1 })).choices;
    expect(alone!.message.content).toBe(texts[0]!);
  });

  test("ends before a stop string", async () => {
    const whole = (await chat(greedy)).choices[0]!.message.content!;
    const stop = whole.slice(-4, -2);
    const expected = whole.slice(0, whole.indexOf(stop));
    const [choice] = (await chat({ ...greedy, stop: [stop, "never this"] })).choices;
    expect(choice).toMatchObject({ message: { content: expected }, finish_reason: "stop" });
    const chunks = await chatChunks({ ...greedy, stop });
    expect(textOf(chunks)).toBe(expected);
    expect(chunks.at(-1)!.choices[0]!.finish_reason).toBe("stop");
  });

  test("ends at a stop token, unless min_tokens is not reached", async () => {
    const { choices, prompt_token_ids } = await chat({ ...greedy, return_token_ids: true });
    const ids = choices[0]!.token_ids!;
    expect(ids.length).toBe(24);
    expect(prompt_token_ids!.length).toBeGreaterThan(20);
    const stop_token_ids = [ids[10]!];
    const at = ids.indexOf(ids[10]!);
    const ended = (await chat({ ...greedy, stop_token_ids, return_token_ids: true })).choices[0]!;
    expect(ended).toMatchObject({ finish_reason: "stop", token_ids: ids.slice(0, at + 1) });
    const later = await chat({ ...greedy, stop_token_ids, min_tokens: 24 });
    expect(later.choices[0]!.finish_reason).toBe("length");
  });

  test("follows logit_bias and the penalties", async () => {
    const only = await chat({ ...greedy, logit_bias: { 65: 100 } });
    expect(only.choices[0]!.message.content).toBe("A".repeat(24));
    const varied = await chat({ ...greedy, logit_bias: { 65: 20 }, frequency_penalty: 2 });
    expect(varied.choices[0]!.message.content).not.toBe("A".repeat(24));
  });

  test("returns log-probabilities, the same in a stream", async () => {
    const request = { ...greedy, logprobs: true, top_logprobs: 2 };
    const whole = (await chat(request)).choices[0]!.logprobs!.content!;
    expect(whole.length).toBe(24);
    for (const { token, logprob, bytes, top_logprobs } of whole) {
      expect(logprob).toBeLessThanOrEqual(0);
      expect(new TextDecoder().decode(Uint8Array.from(bytes!))).toBe(token);
      expect(top_logprobs.length).toBe(2);
      expect(top_logprobs[0]!.token).toBe(token);
      expect(top_logprobs[0]!.logprob).toBe(logprob);
    }
    const chunks = await chatChunks(request);
    const streamed = chunks.flatMap(({ choices }) => choices[0]!.logprobs?.content ?? []);
    expect(streamed.map(({ token }) => token)).toEqual(whole.map(({ token }) => token));
  });

  test("accepts text parts, the role developer, and a message to continue", async () => {
    const parts = [{ type: "text", text: "Say something." }];
    const same = await chat({ ...greedy, messages: [{ role: "user", content: parts }] });
    expect(same.choices).toEqual((await chat(greedy)).choices);
    const system = { role: "system", content: "Be brief." };
    const developer = { role: "developer", content: "Be brief." };
    expect((await chat({ ...greedy, messages: [developer, ...messages] })).choices).toEqual(
      (await chat({ ...greedy, messages: [system, ...messages] })).choices,
    );
    const begun = [...messages, { role: "assistant", content: "It" }];
    const tokens = async (more: object) =>
      (await (await server.post("/tokenize", { messages: begun, ...more })).json()) as {
        tokens: number[];
      };
    const open = await tokens({ continue_final_message: true });
    expect(open.tokens.at(-1)).toBe("t".charCodeAt(0));
    expect(
      (await chat({ ...greedy, messages: begun, continue_final_message: true })).usage,
    ).toMatchObject({ prompt_tokens: open.tokens.length });
  });
});

describe("a text completion", () => {
  test("has 16 tokens by default", async () => {
    const { usage, choices } = await complete({ prompt: "Once" });
    expect(usage).toMatchObject({ prompt_tokens: 4, completion_tokens: 16 });
    expect(choices).toMatchObject([{ index: 0, finish_reason: "length", logprobs: null }]);
  });

  test("takes several prompts, as texts or as tokens, with n answers each", async () => {
    const prompts = ["Once", "Twice upon"];
    const ids = prompts.map((prompt) => [...Buffer.from(prompt)]);
    const asTexts = await complete({ prompt: prompts, n: 2, seed: 1, temperature: 1 });
    const asTokens = await complete({ prompt: ids, n: 2, seed: 1, temperature: 1 });
    expect(asTexts.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    expect(asTokens.choices).toEqual(asTexts.choices);
    const alone = await complete({ prompt: prompts[1], n: 2, seed: 1, temperature: 1 });
    expect(alone.choices.map(({ text }) => text)).toEqual(
      asTexts.choices.slice(2).map(({ text }) => text),
    );
    expect(asTexts.usage).toMatchObject({ prompt_tokens: 14, completion_tokens: 64 });
  });

  test("streams the same text as without streaming", async () => {
    const request = { prompt: ["Once", "Twice"], temperature: 0, max_tokens: 12, echo: true };
    const whole = await complete(request);
    const response = await server.post("/v1/completions", { ...request, stream: true });
    const all = await events(response);
    expect(all.at(-1)).toBe("[DONE]");
    const choices = all.slice(0, -1).flatMap((event) => CompletionChunk.parse(event).choices);
    for (const { index, text } of whole.choices) {
      const own = choices.filter((choice) => choice.index === index);
      expect(own.map((choice) => choice.text).join("")).toBe(text);
      expect(own.at(-1)!.finish_reason).toBe("length");
    }
  });

  test("echoes the prompt with its log-probabilities", async () => {
    const { choices, usage } = await complete({
      prompt: "abc",
      max_tokens: 2,
      echo: true,
      logprobs: 2,
      logit_bias: { 65: 100 },
    });
    const [{ text, logprobs }] = choices as [CompletionResponse["choices"][number]];
    expect(text).toBe("abcAA");
    expect(logprobs!.tokens).toEqual(["a", "b", "c", "A", "A"]);
    expect(logprobs!.text_offset).toEqual([0, 1, 2, 3, 4]);
    expect(logprobs!.token_logprobs[0]).toBeNull();
    expect(logprobs!.top_logprobs![0]).toBeNull();
    expect(logprobs!.token_logprobs.slice(1).every((value) => value! < 0)).toBe(true);
    expect(Object.keys(logprobs!.top_logprobs![1]!).length).toBe(2);
    expect(usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 2 });
  });

  test("can be the prompt alone", async () => {
    const { choices } = await complete({ prompt: "abc", max_tokens: 0, echo: true, logprobs: 0 });
    expect(choices[0]!.text).toBe("abc");
    expect(choices[0]!.logprobs!.tokens).toEqual(["a", "b", "c"]);
  });

  test("that is only the prompt counts no generated tokens anywhere", async () => {
    const generated = () => server.metric("mlx_serve_generated_tokens_total");
    const before = await generated();
    // If a token were sampled, it would end the answer.
    const ended = { logit_bias: { 65: 100 }, stop_token_ids: [65] };
    const asked = { prompt: ["abc", "de"], max_tokens: 0, echo: true, return_token_ids: true };
    const { choices, usage } = await complete({ ...asked, ...ended, n: 2 });
    expect(choices.map(({ text }) => text)).toEqual(["abc", "abc", "de", "de"]);
    for (const choice of choices) {
      expect(choice).toMatchObject({ token_ids: [], finish_reason: "length" });
    }
    expect(usage).toMatchObject({ prompt_tokens: 5, completion_tokens: 0, total_tokens: 5 });
    const withUsage = { ...asked, stream: true, stream_options: { include_usage: true } };
    const streamed = await server.post("/v1/completions", withUsage);
    expect((await events(streamed)).at(-2)).toMatchObject({ usage: { completion_tokens: 0 } });
    expect((await generated()) - before).toBe(0);
    const headers = { authorization: `Bearer ${KEY}` };
    const keyed = await server.post("/v1/completions", { ...asked, prompt: "a" }, { headers });
    expect(keyed.headers.get("x-ratelimit-remaining-tokens")).toBe("1");
  });

  test("has --max-tokens tokens by default", async () => {
    const told = await startTestServer({ args: ["--max-tokens", "20"] });
    const ask = async (more: object) =>
      await told.post("/v1/completions", { prompt: "Once", ignore_eos: true, ...more });
    const lengthOf = async (more: object) =>
      CompletionResponse.parse(await (await ask(more)).json()).usage.completion_tokens;
    expect(await lengthOf({})).toBe(20);
    expect(await lengthOf({ max_tokens: null, min_tokens: 20 })).toBe(20);
    expect(await lengthOf({ max_tokens: 24 })).toBe(24);
    const longer = await ask({ min_tokens: 21 });
    await expectRefusal(longer, { status: 400, param: "min_tokens", code: "invalid_value" });
    await told.stop();
    const untold = await server.post("/v1/completions", { prompt: "Once", min_tokens: 17 });
    await expectRefusal(untold, { status: 400, param: "min_tokens", code: "invalid_value" });
  });

  test("takes control tokens in a text as text", async () => {
    const { usage } = await complete({ prompt: "<|im_end|>", max_tokens: 1 });
    expect(usage.prompt_tokens).toBe(10);
  });
});

describe("embeddings", () => {
  const embed = async (request: object) =>
    EmbeddingResponse.parse(await (await server.post("/v1/embeddings", request)).json());

  test("are vectors of length 1, the same alone and in a list, as numbers and as bytes", async () => {
    const { data, usage } = await embed({ input: ["one", "two", "one"] });
    expect(data.map(({ index }) => index)).toEqual([0, 1, 2]);
    const [first, second, third] = data.map(({ embedding }) => embedding as number[]);
    expect(Math.hypot(...first!)).toBeCloseTo(1, 5);
    // Rounding depends on the shape of the batch.
    third!.forEach((value, i) => {
      expect(value).toBeCloseTo(first![i]!, 5);
    });
    expect(second).not.toEqual(first!);
    expect(usage).toEqual({ prompt_tokens: 9, total_tokens: 9 });
    const encoded = await embed({ input: "one", encoding_format: "base64" });
    const bytes = Buffer.from(encoded.data[0]!.embedding as string, "base64");
    const floats = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    floats.forEach((value, i) => {
      expect(value).toBeCloseTo(first![i]!, 5);
    });
  });

  test("can be truncated, and are normalized again", async () => {
    const { data } = await embed({ input: "one", dimensions: 8 });
    const embedding = data[0]!.embedding as number[];
    expect(embedding.length).toBe(8);
    expect(Math.hypot(...embedding)).toBeCloseTo(1, 5);
  });

  test("cannot be longer than the model's vectors", async () => {
    const { data } = await embed({ input: "one", dimensions: 64 });
    expect(data[0]!.embedding).toHaveLength(64);
    const refused = await server.post("/v1/embeddings", { input: "one", dimensions: 65 });
    const wanted = { status: 400, param: "dimensions", code: "invalid_value" };
    const { message } = await expectRefusal(refused, wanted);
    expect(message).toContain("at most 64");
  });

  test("of more texts than run at once are all returned", async () => {
    const input = Array.from({ length: 100 }, (_, i) => `text ${i}`);
    expect((await embed({ input })).data.length).toBe(100);
  });
});

describe("besides answers", () => {
  test("a request's id is returned, or made", async () => {
    const given = await server.post(
      "/v1/completions",
      { prompt: "a", max_tokens: 1 },
      { headers: { "x-request-id": "my-id.1" } },
    );
    expect(given.headers.get("x-request-id")).toBe("my-id.1");
    const odd = await server.get("/v1/models", { headers: { "x-request-id": "no good id" } });
    expect(odd.headers.get("x-request-id")).toStartWith("req-");
  });

  test("tokens survive a round trip", async () => {
    const tokenized = await server.post("/tokenize", { prompt: "héllo", return_token_strs: true });
    const { tokens, count, max_model_len } = (await tokenized.json()) as {
      tokens: number[];
      count: number;
      max_model_len: number;
    };
    expect({ count, max_model_len }).toEqual({ count: 6, max_model_len: 4096 });
    const back = await server.post("/detokenize", { tokens });
    expect(await back.json()).toEqual({ prompt: "héllo" });
  });

  test("the models are listed, and found by their names", async () => {
    const { data } = (await (await server.get("/v1/models")).json()) as { data: { id: string }[] };
    expect(data[0]).toMatchObject({ id: "tiny", object: "model", max_model_len: 4096 });
    const found = await server.get("/v1/models/default");
    expect(await found.json()).toEqual(data[0]);
    expect((await server.get("/v1/models/none")).status).toBe(404);
  });

  test("metrics count what was done", async () => {
    const before = await server.metric("mlx_serve_generated_tokens_total");
    await complete({ prompt: "count me", max_tokens: 5 });
    expect((await server.metric("mlx_serve_generated_tokens_total")) - before).toBe(5);
    expect(await server.metric("mlx_serve_first_token_seconds_count")).toBeGreaterThan(0);
  });

  test("a server with --allowed-hosts still accepts the address it listens on", async () => {
    const { serving } = server;
    const settings = { ...serving.settings, host: "10.1.2.3", allowedHosts: ["name.example"] };
    const app = makeApp({ ...serving, settings });
    const statusFor = async (host: string) =>
      (await app.request("/health", { headers: { host } })).status;
    expect(await statusFor("10.1.2.3:8080")).toBe(200);
    expect(await statusFor("name.example")).toBe(200);
    expect(await statusFor("other.example")).toBe(403);
  });
});
