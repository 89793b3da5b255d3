// Writes replies in the format of Ollama's API: JSON lines. The last line has the finish reason, counts and
// durations.
import type { Context } from "hono";
import type { OllamaCall, OllamaChatResponse } from "../../api/ollama/generate.ts";
import type { Part } from "../../conversation/conversation.ts";
import type { AnswerEvent, End } from "../../conversation/events.ts";
import type { Usage } from "../../serve/answers.ts";
import type { HttpEnv } from "../frame/env.ts";
import type { RequestRecord } from "../frame/request-record.ts";
import { callArguments } from "../generate/call-arguments.ts";
import type { Exchange, ResponseContext, ResponseWriter } from "../generate/codec.ts";
import { chatLogprobs } from "../openai/chat.ts";
import { ollamaError } from "./dialect.ts";

/** Content of one line of the response. */
export type Said = { text?: string; thought?: string; calls?: OllamaCall[] };

type Line = Omit<OllamaChatResponse, "message">;

/** Writes a reply. `lineOf` converts the content of a line to the API's fields. */
export function ollamaWriter(
  { logprobs: isAskedLogprobs }: { logprobs: boolean },
  c: Context<HttpEnv>,
  lineOf: (said: Said) => object,
): Exchange["writer"] {
  const startMs = performance.now();
  return ({ model }: ResponseContext): ResponseWriter => {
    const submittedMs = performance.now();
    const calls = new CallLines();
    let reason: End["reason"] = "stop";
    const line = (said: Said): Line => ({
      model: model.name,
      created_at: new Date().toISOString(),
      ...lineOf(said),
      done: false,
    });
    const logprobs = ({ scores }: { scores: Parameters<typeof chatLogprobs>[1] }) =>
      isAskedLogprobs && { logprobs: chatLogprobs(model.text.tokenizer, scores).content ?? [] };
    const ending = (usage: Usage) => ({
      done: true,
      done_reason: reason === "length" ? ("length" as const) : ("stop" as const),
      ...countsOf(usage),
      ...durationsOf(startMs, submittedMs, c.get("record")),
    });
    return {
      whole([answer], usage): Line {
        reason = answer!.end.reason;
        return { ...line(saidIn(answer!.parts)), ...logprobs(answer!), ...ending(usage) };
      },
      opening: () => [],
      events(written): Line[] {
        const { events, tokens } = written;
        const end = events.at(-1);
        if (end?.kind === "end") reason = end.reason;
        const lines = events.flatMap((event) => calls.said(event)).map(line);
        if (isAskedLogprobs && lines.length === 0 && tokens.length > 0) lines.push(line({}));
        const [first, ...others] = lines;
        return first ? [{ ...first, ...logprobs(written) }, ...others] : [];
      },
      closing: (usage): Line[] => [{ ...line({}), ...ending(usage) }],
      failure: (error) => [ollamaError(error)],
      heartbeat: () => line({}),
    };
  };
}

/** Buffers tool calls, so that each is sent whole, or not at all if the token limit cut it off. */
class CallLines {
  #count = 0;
  #open: { id: string; name: string; arguments: string } | undefined;

  said(event: AnswerEvent): Said[] {
    switch (event.kind) {
      case "text":
        return [{ text: event.text }];
      case "thought":
        return [{ thought: event.text }];
      case "call":
        this.#open = { id: event.id, name: event.name, arguments: "" };
        return [];
      case "arguments":
        if (this.#open) this.#open.arguments += event.text;
        return [];
      case "call_end": {
        const calls = this.#open ? wireCalls([this.#open], this.#count) : [];
        this.#count += calls.length;
        return calls.length > 0 ? [{ calls }] : [];
      }
      case "end":
        return [];
    }
  }
}

function saidIn(parts: readonly Part[]): Said {
  const textOf = (kind: "text" | "thought") =>
    parts.flatMap((part) => (part.kind === kind ? [part.text] : [])).join("");
  const calls = parts.filter((part) => part.kind === "call").filter(({ isCutOff }) => !isCutOff);
  return { text: textOf("text"), thought: textOf("thought"), calls: wireCalls(calls, 0) };
}

type WrittenCall = { id?: string | undefined; name: string; arguments: string };

function wireCalls(calls: readonly WrittenCall[], first: number): OllamaCall[] {
  return calls.flatMap(({ id, name, arguments: text }, i) => {
    const given = callArguments(text);
    return given ? [{ id: id!, function: { index: first + i, name, arguments: given } }] : [];
  });
}

function countsOf({ promptTokens, completionTokens }: Usage) {
  return { prompt_eval_count: promptTokens, eval_count: completionTokens };
}

function durationsOf(startMs: number, submittedMs: number, { ttftMs, queueMs = 0 }: RequestRecord) {
  const endMs = performance.now();
  const firstMs = submittedMs + (ttftMs ?? endMs - submittedMs);
  return {
    total_duration: nanoseconds(endMs - startMs),
    load_duration: nanoseconds(submittedMs - startMs),
    prompt_eval_duration: nanoseconds(firstMs - submittedMs - queueMs),
    eval_duration: nanoseconds(endMs - firstMs),
  };
}

export function nanoseconds(ms: number): number {
  return Math.max(0, Math.round(ms * 1e6));
}
