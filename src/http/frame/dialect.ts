// The wire conventions of one vendor's APIs: the shape of errors and stream events.
import type { z } from "zod";
import { ErrorResponse } from "../../api/error.ts";
import type { ApiError } from "./errors.ts";

export type Dialect = {
  /** Schema of the body of an error response. */
  errorSchema: z.ZodType;
  /** Returns the status and body of the response to an error. */
  refusal(error: ApiError, requestId: string | undefined): { status: number; body: object };
  /** Media type of a stream. */
  streamType: "text/event-stream; charset=utf-8" | "application/x-ndjson";
  /** Encodes one event of a stream. */
  eventText(event: object): string;
  /** Text that is sent after the last event. */
  streamEnd: string;
  /** An additional header for the request's id, besides x-request-id. */
  requestIdHeader?: string;
  /** Path prefix that only this dialect uses, so that errors for unknown paths below it have this dialect too. */
  prefix?: string;
};

export const openAi: Dialect = {
  errorSchema: ErrorResponse,
  refusal: ({ status, body }) => ({ status, body }),
  streamType: "text/event-stream; charset=utf-8",
  eventText: (event) => `data: ${JSON.stringify(event)}\n\n`,
  streamEnd: "data: [DONE]\n\n",
};

/** The dialect of OpenAI's newer APIs, whose events are named. */
export const openAiEvents: Dialect = { ...openAi, eventText: namedEvent, streamEnd: "" };

/** Encodes a server-sent event whose name is its type. */
export function namedEvent(event: object): string {
  const { type } = event as { type: string };
  return `event: ${type}\ndata: ${JSON.stringify(event)}\n\n`;
}
