// Calls the server with OpenAI's package for node.
import { APIError, OpenAI, OpenAIError, toFile } from "openai";
import { Stream } from "openai/streaming";
import { answerCalls } from "./client-program.mjs";

/** @import { Question } from "./client-process.ts" */

/** @type {Record<Question["method"], (client: OpenAI, body: any, options: object) => Promise<unknown>>} */
const methods = {
  chat: (client, body, options) => client.chat.completions.create(body, options),
  completions: (client, body, options) => client.completions.create(body, options),
  embeddings: (client, body, options) => client.embeddings.create(body, options),
  responses: (client, body, options) => client.responses.create(body, options),
  models: async (client, _, options) => await client.models.list(options),
  model: (client, body, options) => client.models.retrieve(body, options),
  upload: async (client, { text, name }, options) => {
    const file = await toFile(Buffer.from(text), name);
    return await client.files.create({ file, purpose: "batch" }, options);
  },
  files: async (client, body, options) => await client.files.list(body, options),
  file: (client, body, options) => client.files.retrieve(body, options),
  "file content": async (client, id, options) => (await client.files.content(id, options)).text(),
  "delete file": (client, body, options) => client.files.delete(body, options),
  "create batch": (client, body, options) => client.batches.create(body, options),
  batches: async (client, body, options) => await client.batches.list(body, options),
  batch: (client, body, options) => client.batches.retrieve(body, options),
  "cancel batch": (client, body, options) => client.batches.cancel(body, options),
};

await answerCalls(
  OpenAI,
  Stream,
  (client, /** @type {Question} */ { method, body }, options) =>
    methods[method](client, body, options),
  (error) => {
    if (!(error instanceof OpenAIError)) throw error;
    const known = error instanceof APIError ? error : undefined;
    return {
      class: error.constructor.name,
      status: known?.status ?? null,
      code: known?.code ?? null,
      param: known?.param ?? null,
      type: known?.type ?? null,
      message: known?.error?.message ?? null,
      retryAfter: known?.headers?.get("retry-after") ?? null,
      requestId: known?.requestID ?? null,
    };
  },
);
