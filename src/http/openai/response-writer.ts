// Writes a reply in the format of OpenAI's Responses API: whole, or as events with sequence numbers.
import type { OutputItem } from "../../api/openai/response-items.ts";
import type {
  ResponseEvent,
  ResponseObject,
  ResponsesRequest,
} from "../../api/openai/responses.ts";
import type { End } from "../../conversation/events.ts";
import type { Usage } from "../../serve/answers.ts";
import type { ApiError } from "../frame/errors.ts";
import { serviceTiers } from "../frame/priority.ts";
import type { ResponseContext, ResponseWriter } from "../generate/codec.ts";
import { ItemEvents, itemOf, type NewEvent, newItemId, statusOf } from "./response-items.ts";
import type { ResponseTools } from "./response-tools.ts";

/** Creates the writer of a response. `store` stores the finished response if requested; returns whether it did. */
export function responseWriter(
  request: ResponsesRequest,
  context: ResponseContext,
  tools: ResponseTools,
  store: (response: ResponseObject) => boolean,
): ResponseWriter {
  const isCarried = request.include?.includes("reasoning.encrypted_content") === true;
  const options = { tools, isCarried };
  const begun = begunResponse(request, context);
  const finished = (output: OutputItem[], { reason }: End, usage: Usage): ResponseObject => {
    const isCut = reason === "length";
    const response: ResponseObject = {
      ...begun,
      status: isCut ? "incomplete" : "completed",
      completed_at: isCut ? null : Math.floor(Date.now() / 1000),
      incomplete_details: isCut ? { reason: "max_output_tokens" } : null,
      output,
      usage: usageOf(usage, context.reply.thoughtTokens),
    };
    return store(response) ? response : { ...response, store: false };
  };
  const items = new ItemEvents(options);
  let end: End = { reason: "stop" };
  let count = 0;
  const numbered = (event: NewEvent) => ({ ...event, sequence_number: count++ }) as ResponseEvent;
  const ofResponse = (type: ResponseType, response: ResponseObject) =>
    numbered({ type, response } as NewEvent);
  return {
    whole: ([answer], usage) => {
      const { parts, end: ended } = answer!;
      const output = parts.map((part, at) => {
        const isCutOff = ended.reason === "length" && at === parts.length - 1;
        return itemOf(part, newItemId(part, tools), statusOf(part, isCutOff), options);
      });
      return finished(output, ended, usage);
    },
    opening: () => [
      ofResponse("response.created", begun),
      ofResponse("response.in_progress", begun),
    ],
    events(said) {
      const last = said.events.at(-1);
      if (last?.kind === "end") end = last;
      return said.events.flatMap((event) => items.push(event)).map(numbered);
    },
    closing(usage) {
      const response = finished(items.done, end, usage);
      const type = end.reason === "length" ? "response.incomplete" : "response.completed";
      return [ofResponse(type, response)];
    },
    failure(error) {
      const failed = {
        ...begun,
        status: "failed" as const,
        output: items.done,
        error: errorOf(error),
      };
      return [ofResponse("response.failed", { ...failed, store: false })];
    },
    heartbeat: () => ofResponse("response.in_progress", begun),
  };
}

type ResponseType = Extract<ResponseEvent, { response: unknown }>["type"];

function begunResponse(
  request: ResponsesRequest,
  { created, model, priority }: ResponseContext,
): ResponseObject {
  return {
    id: `resp_${crypto.randomUUID().replaceAll("-", "")}`,
    object: "response",
    created_at: created,
    completed_at: null,
    status: "in_progress",
    error: null,
    incomplete_details: null,
    model: model.name,
    output: [],
    usage: null,
    instructions: request.instructions ?? null,
    previous_response_id: request.previous_response_id ?? null,
    store: request.store,
    background: false,
    max_output_tokens: request.max_output_tokens ?? null,
    temperature: request.temperature ?? null,
    top_p: request.top_p ?? null,
    top_logprobs: 0,
    tools: request.tools ?? [],
    tool_choice: request.tool_choice ?? "auto",
    parallel_tool_calls: request.parallel_tool_calls,
    reasoning: { effort: request.reasoning?.effort ?? null, summary: null },
    text: { format: request.text?.format ?? { type: "text" } },
    truncation: "disabled",
    service_tier: request.service_tier ? serviceTiers[priority] : null,
    metadata: request.metadata ?? {},
    user: request.user ?? null,
  };
}

function usageOf(usage: Usage, reasoning: number): ResponseObject["usage"] {
  const { promptTokens, cachedTokens, completionTokens } = usage;
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoning },
    total_tokens: promptTokens + completionTokens,
  };
}

function errorOf({ status, code, message }: ApiError): ResponseObject["error"] {
  const known =
    status === 429 ? "rate_limit_exceeded" : status < 500 ? "invalid_prompt" : "server_error";
  return { code: code ?? known, message };
}
