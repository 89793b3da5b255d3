// The events of an answer, in the order of the model's output. The codec of each API (src/http) translates them.
import type { TokenScore } from "../serve/answer-text.ts";
import type { Part } from "./conversation.ts";

export type AnswerEvent =
  | { kind: "text"; text: string }
  | { kind: "thought"; text: string }
  /** A call begins. Calls are numbered from 0. */
  | { kind: "call"; call: number; id: string; name: string }
  /** Text to append to the call's arguments. */
  | { kind: "arguments"; call: number; text: string }
  /** The call is complete. This event is absent if the token limit or a stop string cut off the call. */
  | { kind: "call_end"; call: number }
  | ({ kind: "end" } & End);

export type End = {
  /** `length`: the token limit or the end of the context was reached, even if the answer contains calls. */
  reason: "stop" | "length" | "calls";
  /** The stop string that ended the answer, if one did. */
  stop?: string | undefined;
};

/** Index, tokens and log-probabilities (`scores`) of an answer, or of a part of it. */
type Written = {
  /** Index of the answer: p * n + a for answer a of prompt p. */
  index: number;
  tokens: readonly number[];
  /** Log-probabilities of the tokens whose text is in the events; empty unless they were requested. */
  scores: readonly TokenScore[];
};

/** New events of one answer. `tokens` may come without events, as while a character is still incomplete. */
export type AnswerEvents = Written & { events: readonly AnswerEvent[] };

export type Answer = Written & { parts: readonly Part[]; end: End };
