// What an answer is told as: a stream of events, in the order in which the model writes. Every API's codec
// turns them into its own (src/http).
import type { TokenScore } from "../serve/answer-text.ts";
import type { Part } from "./conversation.ts";

export type AnswerEvent =
  | { kind: "text"; text: string }
  | { kind: "thought"; text: string }
  /** Calls are numbered from 0. */
  | { kind: "call"; call: number; id: string; name: string }
  /** To be appended to the call's arguments so far. */
  | { kind: "arguments"; call: number; text: string }
  /** The call is complete; it does not come if the token limit or a stop string cut the call off. */
  | { kind: "call_end"; call: number }
  | ({ kind: "end" } & End);

export type End = {
  /** length: the limit on tokens, or the end of the context; it takes precedence, as a call may be cut off. */
  reason: "stop" | "length" | "calls";
  /** The text that ended the answer, if one of the limits' `stops` did. */
  stop?: string | undefined;
};

/** The tokens that events were made of. */
type Written = {
  /** Which answer. Answer a of prompt p has the index p * n + a. */
  index: number;
  tokens: readonly number[];
  /** Of the tokens whose text is in the events; empty unless log-probabilities were asked for. */
  scores: readonly TokenScore[];
};

/** What has come of one answer at once. There may be tokens without events, such as half a character. */
export type AnswerEvents = Written & { events: readonly AnswerEvent[] };

/** A whole answer. */
export type Answer = Written & { parts: readonly Part[]; end: End };
