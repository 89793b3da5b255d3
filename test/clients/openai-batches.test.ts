// OpenAI's package against /v1/files and /v1/batches.
import { beforeAll, describe, expect, test } from "bun:test";
import { NotFoundError, OpenAI, toFile } from "openai";
import type { Batch, FileObject } from "openai/resources";
import { chatLines, jsonLines, parseLines, type RequestLine, saidIn } from "../support/batches.ts";
import { failureOf, type Question, startOpenAi, useClient } from "./client-process.ts";
import { apiKey, useClientServer } from "./client-server.ts";

const server = useClientServer();
let client: OpenAI;
beforeAll(() => {
  client = new OpenAI({ baseURL: server.baseUrl, apiKey, maxRetries: 0 });
});

const upload = async (lines: readonly RequestLine[] | string) =>
  await client.files.create({
    file: await toFile(
      Buffer.from(typeof lines === "string" ? lines : jsonLines(lines)),
      "in.jsonl",
    ),
    purpose: "batch",
  });

type Endpoint = OpenAI.BatchCreateParams["endpoint"];

async function run(
  lines: readonly RequestLine[],
  endpoint: Endpoint = "/v1/chat/completions",
): Promise<Batch> {
  const { id: input_file_id } = await upload(lines);
  const { id } = await client.batches.create({
    input_file_id,
    endpoint,
    completion_window: "24h",
    metadata: { about: "a test" },
  });
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (["completed", "failed"].includes(batch.status)) return batch;
    await Bun.sleep(10);
  }
}

const contentOf = async (id: string | null | undefined) =>
  await (await client.files.content(id!)).text();

describe("files", () => {
  test("are uploaded, listed, read and deleted", async () => {
    const text = jsonLines(chatLines(3));
    const file = await upload(text);
    expect(file).toEqual({
      id: expect.stringMatching(/^file-[0-9a-f]{32}$/),
      object: "file",
      bytes: text.length,
      created_at: expect.any(Number),
      filename: "in.jsonl",
      purpose: "batch",
      status: "processed",
    });
    expect(await client.files.retrieve(file.id)).toEqual(file);
    const other = await upload(text);
    const listed = [];
    for await (const each of client.files.list({ limit: 1 })) listed.push(each.id);
    expect(listed).toEqual([other.id, file.id]);
    expect((await client.files.list({ purpose: "batch_output" })).data).toEqual([]);
    const content = await client.files.content(file.id);
    expect(await content.text()).toBe(text);
    for (const { id } of [file, other]) {
      expect(await client.files.delete(id)).toEqual({ id, object: "file", deleted: true });
      const retrieved = (async () => await client.files.retrieve(id))();
      expect(retrieved).rejects.toThrow(NotFoundError);
      const content = (async () => await client.files.content(id))();
      expect(content).rejects.toThrow(NotFoundError);
    }
    expect((await client.files.list()).data).toEqual([]);
  });

  test("expire if they are to", async () => {
    const file = await client.files.create({
      file: await toFile(Buffer.from("{}\n"), "in.jsonl"),
      purpose: "batch",
      expires_after: { anchor: "created_at", seconds: 3600 },
    });
    expect(file.expires_at).toBe(file.created_at + 3600);
    await client.files.delete(file.id);
  });
});

describe("a batch", () => {
  test("of chats says what the same chats say by themselves", async () => {
    const lines = chatLines(20);
    const batch = await run(lines);
    expect(batch).toMatchObject({
      object: "batch",
      endpoint: "/v1/chat/completions",
      status: "completed",
      errors: null,
      completion_window: "24h",
      error_file_id: null,
      request_counts: { total: 20, completed: 20, failed: 0 },
      metadata: { about: "a test" },
    });
    const output = parseLines(await contentOf(batch.output_file_id));
    expect(output.map((line) => line.custom_id)).toEqual(lines.map((line) => line.custom_id));
    for (const [i, line] of output.entries()) {
      const body = lines[i]!.body as OpenAI.ChatCompletionCreateParamsNonStreaming;
      const alone = await client.chat.completions.create(body);
      expect(line).toMatchObject({
        response: { status_code: 200, request_id: line.id },
        error: null,
      });
      const said = { ...line, response: { ...line.response!, body: { ...alone } } };
      expect(saidIn(line)).toBe(saidIn(said));
    }
  });

  test("of texts and one of embeddings are answered too", async () => {
    const texts = [1, 2, 3].map((n) => ({
      custom_id: `text-${n}`,
      method: "POST",
      url: "/v1/completions",
      body: { prompt: `Text ${n}`, max_tokens: 3 },
    }));
    const completed = await run(texts, "/v1/completions");
    expect(completed.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
    const inputs = [1, 2, 3].map((n) => ({
      custom_id: `input-${n}`,
      method: "POST",
      url: "/v1/embeddings",
      body: { input: `Text ${n}` },
    }));
    const embedded = await run(inputs, "/v1/embeddings");
    for (const { response } of parseLines(await contentOf(embedded.output_file_id))) {
      expect(response!.body).toMatchObject({ data: [{ object: "embedding" }] });
    }
  });

  test("of responses and one of Anthropic's messages have these APIs' own answers and errors", async () => {
    const lines = (url: string, bodies: readonly object[]) =>
      bodies.map((body, n) => ({ custom_id: `line-${n}`, method: "POST", url, body }));
    const asked = [
      { input: "Hi", max_output_tokens: 3, temperature: 0 },
      { input: "Hi", temperature: -1 },
    ];
    const responses = await run(lines("/v1/responses", asked), "/v1/responses");
    expect(responses.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
    const [response] = parseLines(await contentOf(responses.output_file_id));
    expect(response!.response!.body).toMatchObject({ object: "response", status: "incomplete" });

    const messages = [{ role: "user", content: "Hi" }];
    const said = [{ messages, max_tokens: 3, temperature: 0 }, { messages }];
    // OpenAI's client does not know the endpoint.
    const anthropic = await run(lines("/v1/messages", said), "/v1/messages" as "/v1/responses");
    expect(anthropic.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
    const [message] = parseLines(await contentOf(anthropic.output_file_id));
    expect(message!.response!.body).toMatchObject({ type: "message", stop_reason: "max_tokens" });
    const [error] = parseLines(await contentOf(anthropic.error_file_id));
    expect(error!.response!.body).toMatchObject({
      type: "error",
      error: { type: "invalid_request_error" },
    });
  });

  test("has failed requests in its error file, with the response that a client would get", async () => {
    const lines = chatLines(4);
    Object.assign(lines[1]!.body, { temperature: -1 });
    Object.assign(lines[2]!.body, { messages: [] });
    const batch = await run(lines);
    expect(batch.status).toBe("completed");
    expect(batch.request_counts).toEqual({ total: 4, completed: 2, failed: 2 });
    const errors = parseLines(await contentOf(batch.error_file_id));
    expect(errors.map((line) => line.custom_id)).toEqual(["chat-2", "chat-3"]);
    for (const [i, line] of errors.entries()) {
      const alone = await server.post("/v1/chat/completions", lines[i + 1]!.body);
      expect(line.response).toMatchObject({ status_code: 400, body: await alone.json() });
    }
  });

  test("is listed, and can be cancelled", async () => {
    const { id: input_file_id } = await upload(chatLines(500, { max_tokens: 500 }));
    const order = { input_file_id, endpoint: "/v1/chat/completions" } as const;
    const { id } = await client.batches.create({ ...order, completion_window: "24h" });
    expect((await client.batches.cancel(id)).status).toBe("cancelling");
    let batch = await client.batches.retrieve(id);
    while (batch.status === "cancelling") batch = await client.batches.retrieve(id);
    expect(batch).toMatchObject({ status: "cancelled", cancelled_at: expect.any(Number) });
    const listed = [];
    for await (const each of client.batches.list({ limit: 2 })) listed.push(each.id);
    expect(listed.length).toBeGreaterThan(2);
    expect(listed[0]).toBe(id);
    expect(new Set(listed).size).toBe(listed.length);
    // A batch that has ended stays as it is.
    expect((await client.batches.cancel(id)).status).toBe("cancelled");
  });
});

describe.each(["node", "Python"] as const)("OpenAI's package for %s", (language) => {
  const process = useClient(startOpenAi, language);

  const ask = async <T>(question: Question) =>
    (await process.ask({ url: server.baseUrl, key: apiKey, ...question })) as T;
  const put = (text: string) =>
    ask<FileObject>({ method: "upload", body: { name: "in.jsonl", text } });
  const order = (input_file_id: string) =>
    ask<Batch>({
      method: "create batch",
      body: { input_file_id, endpoint: "/v1/chat/completions", completion_window: "24h" },
    });
  const idsOf = async (method: "files" | "batches") => {
    const { data } = await ask<{ data: { id: string }[] }>({ method, body: { limit: 3 } });
    return data.map(({ id }) => id);
  };
  /** The batch once it has ended. */
  const ended = async (id: string) => {
    for (;;) {
      const batch = await ask<Batch>({ method: "batch", body: id });
      if (!/ing$|in_progress/.test(batch.status)) return batch;
      await Bun.sleep(10);
    }
  };

  test("uploads requests, gets their answers in a file, and deletes both", async () => {
    const lines = chatLines(5);
    Object.assign(lines[3]!.body, { temperature: -1 });
    const { id } = await put(jsonLines(lines));
    expect(await ask<string>({ method: "file content", body: id })).toBe(jsonLines(lines));
    const batch = await ended((await order(id)).id);
    expect(batch).toMatchObject({
      status: "completed",
      request_counts: { total: 5, completed: 4, failed: 1 },
    });
    expect((await idsOf("batches"))[0]).toBe(batch.id);
    const [output, errors] = [batch.output_file_id!, batch.error_file_id!];
    expect((await idsOf("files")).toSorted()).toEqual([id, output, errors].toSorted());
    const read = async (file: string) =>
      parseLines(await ask<string>({ method: "file content", body: file }));
    const answers = await read(output);
    const answered = lines.filter((_, i) => i !== 3);
    expect(answers.map((line) => line.custom_id)).toEqual(answered.map((line) => line.custom_id));
    for (const [i, { body }] of answered.entries()) {
      // Python's package insists on a name.
      const chat = { model: "default", ...body } as OpenAI.ChatCompletionCreateParamsNonStreaming;
      const alone = await ask<{ choices: object[] }>({ method: "chat", body: chat });
      expect(answers[i]!.response!.body.choices).toEqual(alone.choices);
    }
    expect(await read(errors)).toMatchObject([
      { custom_id: "chat-4", response: { status_code: 400 } },
    ]);
    for (const file of [id, output, errors]) {
      expect(await ask<object>({ method: "delete file", body: file })).toMatchObject({
        deleted: true,
      });
      expect(await failureOf(ask({ method: "file", body: file }))).toMatchObject({
        class: "NotFoundError",
        status: 404,
        code: "file_not_found",
      });
    }
  });

  test("cancels a batch, and is told what is wrong with one", async () => {
    const { id } = await put(jsonLines(chatLines(500, { max_tokens: 500 })));
    const batch = await order(id);
    const cancelled = await ask<Batch>({ method: "cancel batch", body: batch.id });
    expect(cancelled.status).toBe("cancelling");
    const end = await ended(batch.id);
    expect(end.status).toBe("cancelled");
    const invalid = await put(jsonLines([{ custom_id: "x", method: "GET", url: "/", body: {} }]));
    const failed = await ended((await order(invalid.id)).id);
    expect(failed).toMatchObject({ status: "failed", errors: { data: [{ line: 1 }] } });
    expect(await failureOf(order("file-0"))).toMatchObject({
      class: "BadRequestError",
      param: "input_file_id",
      code: "file_not_found",
    });
    const files = [id, invalid.id, end.output_file_id, end.error_file_id];
    for (const body of files) if (body) await ask({ method: "delete file", body });
  });
});
