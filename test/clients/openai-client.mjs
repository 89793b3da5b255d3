// Calls the server with OpenAI's package for node: a JSON line in for each call, one out for its answer.
import { createInterface } from "node:readline";
import { APIError, OpenAI, OpenAIError, toFile } from "openai";
import { Stream } from "openai/streaming";

/** @import { Call, CallFailure } from "./client-process.ts" */

/** @type {Map<number, AbortController>} */
const controllers = new Map();
/** @type {Map<string, OpenAI>} */
const clients = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const { id, abort, ...call } = JSON.parse(line);
  if (abort) controllers.get(abort)?.abort();
  else void answer(id, call).then((said) => console.log(JSON.stringify({ id, ...said })));
}

/** @param {number} id @param {Call} call */
async function answer(id, call) {
  const controller = new AbortController();
  controllers.set(id, controller);
  try {
    const result = await start(call, controller.signal);
    if (!(result instanceof Stream)) return { value: result };
    const chunks = [];
    for await (const chunk of result) if (chunks.push(chunk) === call.take) break;
    return { value: chunks };
  } catch (error) {
    if (!(error instanceof OpenAIError)) throw error;
    return { error: described(error) };
  }
}

/** @param {Call} call @param {AbortSignal} signal @returns {Promise<unknown>} */
async function start(call, signal) {
  const { method, body } = call;
  const client = clientOf(call);
  switch (method) {
    case "chat":
      return client.chat.completions.create(body, { signal });
    case "completions":
      return client.completions.create(body, { signal });
    case "embeddings":
      return client.embeddings.create(body, { signal });
    case "responses":
      return client.responses.create(body, { signal });
    case "models":
      return client.models.list({ signal });
    case "model":
      return client.models.retrieve(body, { signal });
    case "upload": {
      const file = await toFile(Buffer.from(body.text), body.name);
      return client.files.create({ file, purpose: "batch" }, { signal });
    }
    case "files":
      return client.files.list(body, { signal });
    case "file":
      return client.files.retrieve(body, { signal });
    case "file content":
      return (await client.files.content(body, { signal })).text();
    case "delete file":
      return client.files.delete(body, { signal });
    case "create batch":
      return client.batches.create(body, { signal });
    case "batches":
      return client.batches.list(body, { signal });
    case "batch":
      return client.batches.retrieve(body, { signal });
    case "cancel batch":
      return client.batches.cancel(body, { signal });
  }
}

/** @param {Call} call */
function clientOf({ url, key, retries }) {
  const name = JSON.stringify([url, key, retries]);
  const options = retries === undefined ? {} : { maxRetries: retries };
  const client = clients.get(name) ?? new OpenAI({ baseURL: url, apiKey: key, ...options });
  clients.set(name, client);
  return client;
}

/** @param {OpenAIError} error @returns {CallFailure} */
function described(error) {
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
}
