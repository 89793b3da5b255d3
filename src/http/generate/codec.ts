// A codec maps one API to conversations: its request to a conversation, and the events of the reply to its response. A
// new API is a new codec and a row in the table of routes.
import type { Context } from "hono";
import type { z } from "zod";
import type { Conversation } from "../../conversation/conversation.ts";
import type { Answer, AnswerEvents } from "../../conversation/events.ts";
import type { Reply } from "../../conversation/reply.ts";
import type { Priority } from "../../engine/protocol.ts";
import type { Usage } from "../../serve/answers.ts";
import type { ServedModel } from "../../serve/models.ts";
import type { Dialect } from "../frame/dialect.ts";
import type { HttpEnv } from "../frame/env.ts";
import type { ApiError } from "../frame/errors.ts";
import type { Generating } from "../frame/serving.ts";

export type Codec<T extends { stream: boolean }> = {
  dialect: Dialect;
  request: z.ZodType<T>;
  /** Translates a request; throws an ApiError if it names a nonexistent object, such as a previous response. */
  exchange(request: T, serving: Generating, c: Context<HttpEnv>): Exchange;
};

export type Exchange = {
  conversation: Conversation;
  writer(context: ResponseContext): ResponseWriter;
};

export type ResponseContext = {
  /** Unix time, in seconds. */
  created: number;
  model: ServedModel;
  /** The priority that the request got. */
  priority: Priority;
  /** Token ids of each prompt. */
  prompts: readonly Uint32Array[];
  reply: Reply;
};

export type ResponseWriter = {
  whole(answers: readonly Answer[], usage: Usage): object;
  /** Returns the first events of a stream. */
  opening(): object[];
  events(said: AnswerEvents): object[];
  /** Returns the last events of a stream. */
  closing(usage: Usage): object[];
  /** Returns the last events of a stream that fails. */
  failure(error: ApiError): object[];
  /** Returns an event for heartbeats; without it, heartbeats are SSE comments, which clients ignore. */
  heartbeat?(): object;
};
