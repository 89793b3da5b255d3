// What one vendor's APIs have in common on the wire: how an error and an event of a stream are written.
import type { ApiError } from "./errors.ts";

export type Dialect = {
  /** The response to an error. */
  refusal(error: ApiError, requestId: string | undefined): { status: number; body: object };
  /** An event of a stream. */
  eventText(event: object): string;
  /** What follows a stream's last event. */
  streamEnd: string;
};

export const openAi: Dialect = {
  refusal: ({ status, body }) => ({ status, body }),
  eventText: (event) => `data: ${JSON.stringify(event)}\n\n`,
  streamEnd: "data: [DONE]\n\n",
};
