// Ollama's POST /api/chat and /api/generate
import type { Context, Handler } from "hono";
import {
  OllamaChatRequest,
  type OllamaChatResponse,
  OllamaGenerateRequest,
  type OllamaGenerateResponse,
  type OllamaMessage,
} from "../../api/ollama/generate.ts";
import { jsonDocument } from "../../conversation/constraint.ts";
import type { Chat, Conversation, Message, Part } from "../../conversation/conversation.ts";
import type { Priority } from "../../engine/protocol.ts";
import type { HttpEnv } from "../frame/env.ts";
import { forbidden } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import type { Generating } from "../frame/serving.ts";
import type { Codec } from "../generate/codec.ts";
import { answered } from "../generate/generate.ts";
import { offeredTool } from "../generate/openai-fields.ts";
import { unload } from "../owner/admin.ts";
import { ollamaDialect } from "./dialect.ts";
import { ollamaWriter, type Said } from "./writer.ts";

type Request = OllamaChatRequest | OllamaGenerateRequest;

const chatCodec: Codec<OllamaChatRequest> = {
  dialect: ollamaDialect,
  request: OllamaChatRequest,
  exchange: (request, _, c) => ({
    conversation: { ...commonOf(request, c), prompt: chatOf(request) },
    writer: ollamaWriter(request, c, chatLine),
  }),
};

const generateCodec: Codec<OllamaGenerateRequest> = {
  dialect: ollamaDialect,
  request: OllamaGenerateRequest,
  exchange: (request, _, c) => ({
    conversation: { ...commonOf(request, c), prompt: promptOf(request) },
    writer: ollamaWriter(request, c, generateLine),
  }),
};

export const ollamaChat = handlerOf(chatCodec, ({ messages }) => messages.length === 0, chatLine);
export const ollamaGenerate = handlerOf(generateCodec, ({ prompt }) => prompt === "", generateLine);

/** Handles a request; one without a prompt only loads or unloads the model. */
function handlerOf<T extends Request>(
  codec: Codec<T>,
  saysNothing: (request: T) => boolean,
  line: (said: Said) => object,
) {
  return (serving: Generating, ceiling: Priority): Handler<HttpEnv> =>
    async (c) => {
      const request = await readRequest(c, serving, codec.request);
      if (!saysNothing(request)) return await answered(c, serving, ceiling, codec, request);
      const done_reason = await loadedOrUnloaded(request, serving, c);
      const { model } = request;
      return c.json({ model, created_at: now(), ...line({}), done: true, done_reason });
    };
}

async function loadedOrUnloaded(
  request: Request,
  serving: Generating,
  c: Context<HttpEnv>,
): Promise<"load" | "unload"> {
  if (request.keep_alive === 0) {
    if (!c.get("caller").owner) throw forbidden("This key may not manage the server.");
    await unload(serving, request.model);
    return "unload";
  }
  const { end } = await serving.models.use(request.model, keepAliveOf(request, c));
  end();
  return "load";
}

/** Returns the requested keep-alive time, or undefined if the key is not the owner's: others must not hold memory. */
export function keepAliveOf(
  { keep_alive }: { keep_alive?: number | undefined },
  c: Context<HttpEnv>,
): number | undefined {
  return c.get("caller").owner ? keep_alive : undefined;
}

function commonOf(request: Request, c: Context<HttpEnv>): Omit<Conversation, "prompt"> {
  const { format, options = {} } = request;
  const { num_predict: most = -1, seed = -1, num_ctx } = options;
  return {
    model: request.model,
    constraint: format
      ? { param: "format", ...jsonDocument(format === "json" ? { type: "object" } : format) }
      : undefined,
    sampling: {
      temperature: options.temperature,
      topP: options.top_p,
      topK: options.top_k,
      minP: options.min_p,
      seed: seed < 0 ? undefined : seed,
      repetitionPenalty: options.repeat_penalty,
      presencePenalty: options.presence_penalty,
      frequencyPenalty: options.frequency_penalty,
    },
    limits: {
      maxTokens: most < 0 ? undefined : most,
      stops: options.stop ?? [],
      context: num_ctx === undefined ? undefined : { param: "options.num_ctx", tokens: num_ctx },
    },
    n: 1,
    logprobs: request.logprobs ? request.top_logprobs : undefined,
    keepAliveMs: keepAliveOf(request, c),
  };
}

function chatOf({ messages, tools = [], think }: OllamaChatRequest): Chat {
  const last = messages.at(-1);
  return {
    kind: "chat",
    messages: messagesIn(messages),
    tools: tools.map(offeredTool),
    toolChoice: "auto",
    isParallel: true,
    ...thinkingOf(think),
    continueFinalMessage: last?.role === "assistant" && !last.tool_calls?.length,
  };
}

function promptOf({ prompt, system, raw, think }: OllamaGenerateRequest): Conversation["prompt"] {
  if (raw) return { kind: "texts", prompts: [prompt], isRendered: true };
  return {
    kind: "chat",
    messages: [
      ...(system === "" ? [] : [{ role: "system" as const, parts: textOf(system) }]),
      { role: "user", parts: textOf(prompt) },
    ],
    tools: [],
    toolChoice: "none",
    isParallel: false,
    ...thinkingOf(think),
  };
}

/** Maps Ollama's thinking levels to OpenAI's names, which chat templates know. */
function thinkingOf(think: Request["think"]): Pick<Chat, "thinks" | "effort"> {
  if (typeof think !== "string") return { thinks: think };
  return { thinks: true, effort: think === "max" ? "xhigh" : think };
}

/** Converts messages. A tool result answers the first unanswered call of its tool, or else the first of any tool. */
function messagesIn(asked: readonly OllamaMessage[]): Message[] {
  let open: { id: string | undefined; name: string }[] = [];
  return asked.map((message): Message => {
    const { role, content, thinking, tool_calls: calls = [], tool_name: name } = message;
    if (role === "tool") {
      const call = open.find((each) => name === undefined || each.name === name) ?? open[0];
      open = open.filter((each) => each !== call);
      const callId = message.tool_call_id ?? call?.id;
      return { role, parts: textOf(content), name: name ?? call?.name, callId };
    }
    if (role !== "assistant") return { role, parts: textOf(content) };
    open = calls.map(({ id, function: { name } }) => ({ id, name }));
    const parts: Part[] = [
      ...(thinking ? [{ kind: "thought" as const, text: thinking }] : []),
      ...textOf(content),
      ...calls.map(({ id, function: call }) => ({
        kind: "call" as const,
        id,
        name: call.name,
        arguments: JSON.stringify(call.arguments),
      })),
    ];
    return { role, parts };
  });
}

function textOf(text: string): Part[] {
  return [{ kind: "text", text }];
}

function chatLine({ text = "", thought, calls }: Said): Pick<OllamaChatResponse, "message"> {
  return {
    message: {
      role: "assistant",
      content: text,
      ...(thought && { thinking: thought }),
      ...(calls?.length && { tool_calls: calls }),
    },
  };
}

type GenerateLine = Pick<OllamaGenerateResponse, "response" | "thinking">;

function generateLine({ text = "", thought }: Said): GenerateLine {
  return { response: text, ...(thought && { thinking: thought }) };
}

function now(): string {
  return new Date().toISOString();
}
