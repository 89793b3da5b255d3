// Calls the server with Anthropic's package for node.
import Anthropic, { AnthropicError, APIError } from "@anthropic-ai/sdk";
import { Stream } from "@anthropic-ai/sdk/streaming";
import { answerCalls } from "./client-program.mjs";

/** @import { AnthropicQuestion } from "./client-process.ts" */

await answerCalls(
  Anthropic,
  Stream,
  async ({ messages }, /** @type {AnthropicQuestion} */ { method, body }, options) => {
    if (method === "messages") return await messages.create(body, options);
    if (method === "final message") return await messages.stream(body, options).finalMessage();
    return await messages.countTokens(body, options);
  },
  (error) => {
    if (!(error instanceof AnthropicError)) throw error;
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
  },
);
