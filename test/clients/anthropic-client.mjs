// Calls the server with Anthropic's package for node: a JSON line in for each call, one out for its answer.
import { createInterface } from "node:readline";
import Anthropic, { AnthropicError, APIError } from "@anthropic-ai/sdk";

/** @import { AnthropicCall, CallFailure } from "./client-process.ts" */

/** @type {Map<number, AbortController>} */
const controllers = new Map();
/** @type {Map<string, Anthropic>} */
const clients = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const { id, abort, ...call } = JSON.parse(line);
  if (abort) controllers.get(abort)?.abort();
  else void answer(id, call).then((said) => console.log(JSON.stringify({ id, ...said })));
}

/** @param {number} id @param {AnthropicCall} call */
async function answer(id, call) {
  const controller = new AbortController();
  controllers.set(id, controller);
  try {
    return { value: await result(call, controller.signal) };
  } catch (error) {
    if (!(error instanceof AnthropicError)) throw error;
    return { error: described(error) };
  }
}

/** A stream's events, or what the package puts together from them. @param {AnthropicCall} call @param {AbortSignal} signal */
async function result(call, signal) {
  const { messages } = clientOf(call);
  const { method, body } = call;
  switch (method) {
    case "messages": {
      const made = await messages.create(body, { signal });
      if (!(Symbol.asyncIterator in made)) return made;
      const events = [];
      for await (const event of made) if (events.push(event) === call.take) break;
      return events;
    }
    case "final message":
      return await messages.stream(body, { signal }).finalMessage();
    case "count tokens":
      return await messages.countTokens(body, { signal });
  }
}

/** @param {AnthropicCall} call */
function clientOf({ url, key, retries }) {
  const name = JSON.stringify([url, key, retries]);
  const options = retries === undefined ? {} : { maxRetries: retries };
  const client = clients.get(name) ?? new Anthropic({ baseURL: url, apiKey: key, ...options });
  clients.set(name, client);
  return client;
}

/** @param {AnthropicError} error @returns {CallFailure} */
function described(error) {
  const known = error instanceof APIError ? error : undefined;
  const body = /** @type {{ error?: { message?: string } } | undefined} */ (known?.error);
  return {
    class: error.constructor.name,
    status: known?.status ?? null,
    code: null,
    param: null,
    type: known?.type ?? null,
    message: body?.error?.message ?? null,
    retryAfter: known?.headers?.get("retry-after") ?? null,
    requestId: known?.requestID ?? null,
  };
}
