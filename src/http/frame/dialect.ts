// What one vendor's APIs have in common on the wire: how an error and an event of a stream are written.
import type { z } from "zod";
import { ErrorResponse } from "../../api/error.ts";
import type { ApiError } from "./errors.ts";

export type Dialect = {
  /** The body of an error response. */
  errorSchema: z.ZodType;
  /** The response to an error. */
  refusal(error: ApiError, requestId: string | undefined): { status: number; body: object };
  /** The type of a stream. */
  streamType: "text/event-stream; charset=utf-8" | "application/x-ndjson";
  /** An event of a stream. */
  eventText(event: object): string;
  /** What follows a stream's last event. */
  streamEnd: string;
  /** The header with the request's id, besides x-request-id. */
  requestIdHeader?: string;
  /** The beginning of all its paths, if no other dialect has such: errors of unknown ones are in it too. */
  prefix?: string;
};

export const openAi: Dialect = {
  errorSchema: ErrorResponse,
  refusal: ({ status, body }) => ({ status, body }),
  streamType: "text/event-stream; charset=utf-8",
  eventText: (event) => `data: ${JSON.stringify(event)}\n\n`,
  streamEnd: "data: [DONE]\n\n",
};

/** As in OpenAI's newer APIs. */
export const openAiEvents: Dialect = { ...openAi, eventText: namedEvent, streamEnd: "" };

/** An event that is named by its type. */
export function namedEvent(event: object): string {
  const { type } = event as { type: string };
  return `event: ${type}\ndata: ${JSON.stringify(event)}\n\n`;
}
