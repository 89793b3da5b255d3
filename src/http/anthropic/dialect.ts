// The format of errors and events in Anthropic's APIs.
import { AnthropicError } from "../../api/anthropic/messages.ts";
import { type Dialect, namedEvent } from "../frame/dialect.ts";
import type { ApiError } from "../frame/errors.ts";

export const anthropicDialect: Dialect = {
  errorSchema: AnthropicError,
  refusal: (error, requestId) => ({
    status: isOverload(error) ? 529 : error.status,
    body: { ...anthropicError(error), request_id: requestId },
  }),
  streamType: "text/event-stream; charset=utf-8",
  eventText: namedEvent,
  streamEnd: "",
  requestIdHeader: "request-id",
};

export function anthropicError(error: ApiError): AnthropicError {
  return { type: "error", error: { type: typeOf(error), message: error.message } };
}

/** Returns whether the whole server is overloaded, rather than one API key over its limits. */
function isOverload({ status, code }: ApiError): boolean {
  return status === 503 || (status === 429 && code === "queue_full");
}

const types: Readonly<Record<number, string>> = {
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  504: "timeout_error",
};

function typeOf(error: ApiError): string {
  if (isOverload(error)) return "overloaded_error";
  return types[error.status] ?? (error.status < 500 ? "invalid_request_error" : "api_error");
}
