// The encoder thread: same ids, keys in turns, and an end for work that nobody waits for.
import { afterAll, afterEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EncodeWork } from "../../../src/text/encoder/encode-work.ts";
import {
  type Client,
  Encoder,
  EncoderBusyError,
  EncoderThreadError,
} from "../../../src/text/encoder/encoder.ts";
import { openTextModel } from "../../../src/text/text-model.ts";
import { finish } from "../../../src/text/tokenizer/token-ids.ts";
import { TooLongError } from "../../../src/text/tokenizer/tokenizer.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { editJson } from "../../support/dialect-model.ts";
import { writeReranker } from "../../support/reranker-model.ts";

const folder = mkdtempSync(join(tmpdir(), "encoder-"));
writeChatModel(folder);
const model = openTextModel(folder);
const encoder = new Encoder();
const charged: number[] = [];
afterEach(() => {
  charged.length = 0;
});
afterAll(async () => {
  await encoder.stop();
  rmSync(folder, { recursive: true });
});

const client = (key: string, signal = new AbortController().signal): Client => ({
  key,
  signal,
  charge: (tokens) => charged.push(tokens),
});
const texts = (...all: string[]): EncodeWork => {
  return { kind: "texts", texts: all, addSpecialTokens: true, maxTokens: Infinity };
};
const asText = { controlTokens: "text", addSpecialTokens: true } as const;
const idOf = (char: string) => model.tokenizer.encode(char, { controlTokens: "text" })[0]!;
const long = "words and 12 numbers, <|im_end|> and 中文\n".repeat(5000);

test("long texts and chats have the ids of short ones, and are charged once", async () => {
  const { prompts } = await encoder.encode(model, texts(long, "short", long), client("a"));
  const expected = [long, "short", long].map((text) => model.tokenizer.encode(text, asText));
  expect(prompts.map((prompt) => [...prompt])).toEqual(expected);
  const input = { messages: [{ role: "user", content: long }], addGenerationPrompt: true };
  const chat = { kind: "chat", input, maxTokens: Infinity } as const;
  const { prompts: chats, ending } = await encoder.encode(model, chat, client("a"));
  expect([...chats[0]!]).toEqual(model.chat!(input).ids);
  expect(ending).toEndWith("<|im_start|>assistant");
  const count = expected.reduce((sum, ids) => sum + ids.length, 0);
  expect(charged).toEqual([count, chats[0]!.length]);
});

test("control tokens in texts are tokens if that is wanted, and no second start token is added", async () => {
  const started = join(folder, "started");
  writeChatModel(started);
  editJson(join(started, "tokenizer.json"), (json) => ({
    ...json,
    post_processor: {
      type: "TemplateProcessing",
      single: [
        { SpecialToken: { id: "<|im_start|>", type_id: 0 } },
        { Sequence: { id: "A", type_id: 0 } },
      ],
      special_tokens: { "<|im_start|>": { id: "<|im_start|>", ids: [257] } },
    },
  }));
  const starting = openTextModel(started);
  const idsOf = async (text: string, controlTokens?: "text" | "parse") => {
    const work = { ...texts(text), ...(controlTokens && { controlTokens }) } as EncodeWork;
    return [...(await encoder.encode(starting, work, client("a"))).prompts[0]!];
  };
  const a = "a".charCodeAt(0);
  expect(await idsOf("a<|im_end|>", "parse")).toEqual([257, a, 258]);
  expect(await idsOf("<|im_start|>a", "parse")).toEqual([257, a]);
  const written = [257, ..."<|im_start|>a"].map((each) => (each === 257 ? each : idOf(`${each}`)));
  expect(await idsOf("<|im_start|>a")).toEqual(written);
  expect(await idsOf("<|im_start|>a", "text")).toEqual(written);
});

test("a long chat's heads are those that are found at once", async () => {
  const messages = ["system", "user", "assistant", "user"].map((role) => ({ role, content: long }));
  const work = { input: { messages }, maxTokens: Infinity, wantsHeads: true };
  const { heads } = await encoder.encode(model, { kind: "chat", ...work }, client("a"));
  expect(heads).toEqual(finish(model.chat!.steps(work, [])).heads);
  expect(heads).toHaveLength(2);
});

test("a reranker's pairs are rendered one by one, each with its query or all with the only one", async () => {
  const path = join(folder, "reranker");
  writeReranker(path, "template");
  const reranking = openTextModel(path);
  const { prompt, input } = reranking.reranker!;
  const documents = ["one", long.slice(0, 20_000), "<|im_end|>"];
  for (const queries of [["only"], ["first", "second", "third"]]) {
    for (const instruction of [undefined, "Find it"]) {
      const pairs = { queries, documents, instruction, maxTokens: Infinity };
      const idsOf = (document: string, i: number) =>
        prompt(input(queries[i] ?? "only", document, instruction)).ids;
      const work = { kind: "pairs", ...pairs } as const;
      const { prompts } = await encoder.encode(reranking, work, client("a"));
      expect(prompts.map((each) => [...each])).toEqual(documents.map(idsOf));
      // What is short is not sent to the thread.
      const few = { ...work, queries: queries.slice(0, 1), documents: ["one"] };
      const { prompts: short } = await encoder.encode(reranking, few, client("a"));
      expect([...short[0]!]).toEqual(idsOf("one", 0));
    }
  }
  const cut = { kind: "pairs", queries: ["only"], documents, instruction: undefined } as const;
  const tooLong = encoder.encode(reranking, { ...cut, maxTokens: 200 }, client("a"));
  expect(await tooLong.catch((error) => error)).toBeInstanceOf(TooLongError);
});

test("a key does not wait for another key's long text, nor for one of its own", async () => {
  const done: string[] = [];
  const encode = async (name: string, key: string, text: string) => {
    await encoder.encode(model, texts(text), client(key));
    done.push(name);
  };
  const longest = "a".repeat(3_000_000);
  await Promise.all([
    encode("long", "a", longest),
    encode("other key", "b", "a".repeat(50_000)),
    encode("same key", "a", "a".repeat(50_000)),
  ]);
  expect(done.toSorted()).toEqual(["long", "other key", "same key"]);
  expect(done.at(-1)).toBe("long");
});

test("work whose client leaves ends, and what was done is charged", async () => {
  const leaving = new AbortController();
  const work = encoder.encode(model, texts("a".repeat(8_000_000)), client("a", leaving.signal));
  await encoder.encode(model, texts("a".repeat(50_000)), client("b"));
  leaving.abort(new Error("gone"));
  await expect(work).rejects.toThrow("gone");
  await encoder.encode(model, texts("a".repeat(50_000)), client("b"));
  const [first, partly, last] = charged;
  expect([first, last]).toEqual([50_000, 50_000]);
  expect(partly).toBeLessThan(8_000_000);
});

test("a text that is too long is charged for what was encoded of it", async () => {
  const work = { ...texts(long), maxTokens: 20_000 };
  await expect(encoder.encode(model, work, client("a"))).rejects.toThrow(TooLongError);
  expect(charged[0]).toBeGreaterThanOrEqual(20_000);
  expect(charged[0]).toBeLessThan(50_000);
});

test("a key that has too much waiting is refused, others are not", async () => {
  const leaving = new AbortController();
  const work = texts("a".repeat(2 ** 25));
  const send = (key: string) => encoder.encode(model, work, client(key, leaving.signal));
  const waiting = [send("a")];
  await expect(send("a")).rejects.toThrow(EncoderBusyError);
  waiting.push(send("b"));
  leaving.abort(new Error("gone"));
  for (const each of await Promise.allSettled(waiting)) expect(each.status).toBe("rejected");
});

test("work ends with the thread, and the next starts another", async () => {
  const work = encoder.encode(model, texts("a".repeat(8_000_000)), client("a"));
  await encoder.stop();
  await expect(work).rejects.toThrow(EncoderThreadError);
  const { prompts } = await encoder.encode(model, texts(long), client("a"));
  expect([...prompts[0]!]).toEqual(model.tokenizer.encode(long, asText));
});
