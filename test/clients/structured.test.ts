import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateObject, generateText, NoObjectGeneratedError, Output, streamObject } from "ai";
import OpenAI from "openai";
import { LengthFinishReasonError } from "openai/error";
import { zodResponseFormat } from "openai/helpers/zod";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionFunctionTool,
} from "openai/resources";
import * as z from "zod";
import { settled, useTestServer } from "../support/use-server.ts";
import { startOpenAi, useClient } from "./client-process.ts";

setDefaultTimeout(30_000);

/** Small, so that a random model finishes it soon. */
const Card = z.object({
  suit: z.enum(["hearts", "spades"]),
  rank: z.int().min(2).max(10),
  notes: z.array(z.string().max(3)).max(2),
});
type Card = z.infer<typeof Card>;
const schema = z.toJSONSchema(Card);
const response_format = { type: "json_schema", json_schema: { name: "card", schema } } as const;
const question = "Draw a card.";
/** Enough tokens for any card: one per byte. */
const ENOUGH = 200;

const server = useTestServer({}, settled);
let url: string;
beforeAll(() => {
  url = `${server.url}/v1`;
});

describe.each(["node", "Python"] as const)("OpenAI's package for %s", (language) => {
  const client = useClient(startOpenAi, language);

  type Body = Partial<Omit<ChatCompletionCreateParamsNonStreaming, "stream">>;
  const standard: ChatCompletionCreateParamsNonStreaming = {
    model: "tiny",
    messages: [{ role: "user", content: question }],
    response_format,
    max_tokens: ENOUGH,
    seed: 7,
  };
  const ask = (body: Body & { stream?: boolean }) =>
    client.ask({ url, key: "none", method: "chat", body: { ...standard, ...body } });
  const chat = async (body: Body = {}) => (await ask(body)) as ChatCompletion;
  const chatStream = async (body: Body = {}) =>
    (await ask({ ...body, stream: true })) as ChatCompletionChunk[];

  test("gets documents that its schema allows, the same ones as a stream", async () => {
    const { choices } = await chat({ n: 16 });
    const texts = choices.map(({ message }) => message.content!);
    for (const text of texts) Card.parse(JSON.parse(text));
    expect(new Set(texts).size).toBeGreaterThan(8);
    expect(choices.map(({ finish_reason: reason }) => reason)).toEqual(Array(16).fill("stop"));
    const streamed = Array<string>(16).fill("");
    for (const { choices } of await chatStream({ n: 16 })) {
      for (const { index, delta } of choices) streamed[index] += delta.content ?? "";
    }
    expect(streamed).toEqual(texts);
  });

  test("gets an object where any will do", async () => {
    // The bias makes it close the object at once.
    const asked = { logit_bias: { "125": 100 }, max_tokens: 2 };
    const { choices } = await chat({ ...asked, response_format: { type: "json_object" } });
    expect(choices[0]!.message.content).toBe("{}");
  });

  test("gets a document or a call, if there are functions to call", async () => {
    const now: ChatCompletionFunctionTool = { type: "function", function: { name: "now" } };
    const asked = { n: 16, tools: [now], parallel_tool_calls: false };
    const kinds = (answer: ChatCompletion) =>
      answer.choices.map(({ message: { content, tool_calls: calls }, finish_reason }) => {
        if (calls) expect(calls).toMatchObject([{ function: { name: "now", arguments: "{}" } }]);
        else Card.parse(JSON.parse(content!));
        expect(finish_reason).toBe(calls ? "tool_calls" : "stop");
        return calls ? "call" : "document";
      });
    expect(new Set(kinds(await chat(asked))).size).toBe(2);
    const documents = Array<"document">(16).fill("document");
    expect(kinds(await chat({ ...asked, tool_choice: "none" }))).toEqual(documents);
  });

  test("gets a schema that cannot be enforced refused, with the keyword's name", async () => {
    const schema = { type: "array", items: { type: "integer" }, uniqueItems: true };
    const asked = chat({
      response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    });
    expect(await errorOf(asked)).toMatchObject({
      failure: {
        class: "BadRequestError",
        status: 400,
        param: "response_format",
        code: "invalid_value",
        message: expect.stringContaining("uniqueItems"),
      },
    });
  });
});

describe("OpenAI's helpers", () => {
  const completions = () => new OpenAI({ baseURL: url, apiKey: "none" }).chat.completions;
  const asked = {
    model: "tiny",
    messages: [{ role: "user" as const, content: question }],
    response_format: zodResponseFormat(Card, "card"),
    max_tokens: ENOUGH,
    seed: 7,
  };

  test("read a document, the same one as a stream", async () => {
    const { choices } = await completions().parse(asked);
    const { content, parsed } = choices[0]!.message;
    expect(parsed).toEqual(Card.parse(JSON.parse(content!)));
    const final = await completions().stream(asked).finalChatCompletion();
    expect(final.choices[0]!.message.parsed).toEqual(parsed);
  });

  test("know a document that was cut off for what it is", async () => {
    const cut = completions().parse({ ...asked, max_tokens: 5 });
    expect(await errorOf(cut)).toBeInstanceOf(LengthFinishReasonError);
  });

  test.each([
    ["choice", { choice: ["red", "green"] }, /^(red|green)$/],
    ["regex", { regex: "[0-9]{3}-[a-c]+\\." }, /^[0-9]{3}-[a-c]+\.$/],
    ["grammar", { grammar: 'root ::= "yes" | "no" root' }, /^(no)*yes$/],
    ["json", { json: { enum: [1, "two"] } }, /^(1|"two")$/],
  ])("pass on vLLM's %s, for texts and for chats", async (kind, form, pattern) => {
    const { response_format: _, messages, ...rest } = asked;
    const { choices } = await completions().create({
      ...rest,
      messages,
      ...{ structured_outputs: form },
    });
    expect(choices[0]!.message.content).toMatch(pattern);
    const client = new OpenAI({ baseURL: url, apiKey: "none" });
    const older = { [`guided_${kind}`]: Object.values(form)[0] };
    const text = await client.completions.create({ ...rest, prompt: question, ...older });
    expect(text.choices[0]!.text).toMatch(pattern);
  });
});

describe("the AI SDK", () => {
  const asked = () => ({
    model: createOpenAICompatible({
      name: "tiny",
      baseURL: url,
      // Otherwise it asks for any object, and puts the schema into the prompt only.
      supportsStructuredOutputs: true,
    })("tiny"),
    prompt: question,
    seed: 7,
    maxOutputTokens: ENOUGH,
  });

  test("makes an object, the same one as a stream", async () => {
    const { object, finishReason } = await generateObject({ ...asked(), schema: Card });
    expect(object).toEqual(Card.parse(object));
    expect(finishReason).toBe("stop");
    const { output } = await generateText({ ...asked(), output: Output.object({ schema: Card }) });
    expect(output).toEqual(object);
    const streamed = streamObject({ ...asked(), schema: Card });
    const parts = await Array.fromAsync(streamed.partialObjectStream);
    expect(parts.length).toBeGreaterThan(2);
    expect(await streamed.object).toEqual(object);
  });

  test("knows an object that was cut off for what it is", async () => {
    const cut = generateObject({ ...asked(), schema: Card, maxOutputTokens: 5 });
    const error = await errorOf(cut);
    expect(NoObjectGeneratedError.isInstance(error)).toBe(true);
    expect(error).toMatchObject({ finishReason: "length" });
  });
});

describe("LangChain", () => {
  test.each(["jsonSchema", "functionCalling"] as const)(
    "gets structured output by %s, the same as a stream",
    async (method) => {
      const model = new ChatOpenAI({
        model: "tiny",
        apiKey: "none",
        configuration: { baseURL: url },
        maxTokens: ENOUGH,
        modelKwargs: { seed: 7 },
      }).withStructuredOutput(Card, { name: "card", method });
      const card: Card = await model.invoke(question);
      expect(card).toEqual(Card.parse(card));
      const parts = await Array.fromAsync(await model.stream(question));
      expect(parts.at(-1)).toEqual(card);
    },
  );
});

async function errorOf(call: Promise<unknown>): Promise<unknown> {
  return await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
}
