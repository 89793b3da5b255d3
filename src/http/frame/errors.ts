// Maps all errors to responses. A rejection names the parameter and the expected value, never the value sent; an
// internal error reveals no details.
import { ZodError, type z } from "zod";
import type { ErrorResponse } from "../../api/error.ts";
import { ConversationError } from "../../conversation/conversation-error.ts";
import { draining as drainingAnswer } from "../../engine/client.ts";
import { answerOf, type ErrorAnswer } from "../../error-answer.ts";

export type ErrorDetails = {
  /** The error's type in the response; by default OpenAI's type for the status. */
  type?: string;
  code?: string | undefined;
  /** Dotted path of the faulty field, such as messages.0.content. */
  param?: string | undefined;
  headers?: Record<string, string>;
};

/** An error with the response that the client gets. */
export class ApiError extends Error {
  readonly status: number;
  readonly type: string;
  readonly code: string | undefined;
  readonly param: string | undefined;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, message: string, details: ErrorDetails = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.type = details.type ?? typeOf(status);
    this.code = details.code;
    this.param = details.param;
    this.headers = details.headers ?? {};
  }

  /** A short identifier for logs and metrics. */
  get reason(): string {
    return this.code ?? reasons[this.status] ?? this.type;
  }

  get body(): ErrorResponse {
    const { message, type, param = null, code = null } = this;
    return { error: { message, type, param, code } };
  }
}

/** Reasons, by status, of errors without a code. */
const reasons: Readonly<Record<number, string>> = {
  401: "invalid_api_key",
  403: "forbidden",
  404: "not_found",
  405: "method_not_allowed",
  408: "timeout",
  413: "too_large",
  415: "unsupported_media_type",
  499: "client_gone",
  503: "unavailable",
};

/** Thrown in a request whose client has disconnected. */
export class ClientGoneError extends Error {
  override name = "ClientGoneError";
  readonly answer: ErrorAnswer = { status: 499, message: "The client has disconnected." };

  constructor() {
    super("the client has disconnected");
  }
}

/** Returns OpenAI's error type for a status: wrong keys and unknown models are invalid requests too. */
function typeOf(status: number): string {
  if (status === 429) return "requests";
  if (status === 503) return "service_unavailable_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

export function badRequest(param: string | undefined, message: string, code?: string): ApiError {
  return new ApiError(400, message, { param, code });
}

export function unauthorized(message: string): ApiError {
  return new ApiError(401, message, {
    code: "invalid_api_key",
    headers: { "WWW-Authenticate": "Bearer" },
  });
}

export function forbidden(message: string): ApiError {
  return new ApiError(403, message);
}

export function notFound(message: string): ApiError {
  return new ApiError(404, message);
}

/** Creates a 429 error. `type`: what the exceeded limit counts, such as requests. */
export function tooManyRequests(
  retryAfterSeconds: number,
  message: string,
  {
    type = "requests",
    code = "rate_limit_exceeded",
  }: { type?: "requests" | "tokens"; code?: string } = {},
): ApiError {
  return new ApiError(429, message, { type, code, headers: retryAfter(retryAfterSeconds) });
}

export function unavailable(retryAfterSeconds: number, message: string, code?: string): ApiError {
  return new ApiError(503, message, { code, headers: retryAfter(retryAfterSeconds) });
}

export function draining(): ApiError {
  return answered(drainingAnswer, "messages");
}

function retryAfter(seconds: number): Record<string, string> {
  return { "Retry-After": String(Math.max(1, Math.ceil(seconds))) };
}

/** The name of the request field that holds the prompt. */
export type PromptParam = "messages" | "prompt" | "input" | "tokens" | "documents" | "text_2";

/** Maps any error to the error that the client gets. */
export function apiErrorOf(error: unknown, prompt: PromptParam = "messages"): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof ZodError) return invalidRequest(error);
  if (error instanceof ConversationError) return faultyField(error, prompt);
  const answer = answerOf(error);
  if (answer) return answered(answer, prompt);
  return new ApiError(500, "Internal error.");
}

export function errorResponse(error: unknown): Response {
  const { status, body, headers } = apiErrorOf(error);
  return Response.json(body, { status, headers });
}

/** Names the faulty field as the API does: in snake case. */
function faultyField({ field, problem }: ConversationError, prompt: PromptParam): ApiError {
  const name = field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const param = field === "prompt" ? prompt : name;
  return badRequest(param, `Invalid '${param}': ${problem}.`, "invalid_value");
}

function answered({ status, message, code, param }: ErrorAnswer, prompt: PromptParam): ApiError {
  const headers = status === 429 || status === 503 ? retryAfter(1) : {};
  return new ApiError(status, message, {
    code,
    param: param === "prompt" ? prompt : param,
    headers,
  });
}

type Issue = z.core.$ZodIssue;

function invalidRequest(error: ZodError): ApiError {
  const { issue, path } = firstFault(error.issues, []);
  const param = path.length > 0 ? path.join(".") : undefined;
  const of = param === undefined ? "body" : `'${param}'`;
  if (issue.code === "invalid_type" && issue.message.endsWith("received undefined")) {
    return badRequest(param, `Missing required parameter: ${of}.`, "missing_required_parameter");
  }
  const message = issue.message.replace(/^(Invalid \w+|Too (big|small)): /, "");
  return badRequest(param, `Invalid ${of}: ${message}.`, codeOf(issue));
}

function codeOf(issue: Issue): string {
  if (issue.code === "custom" && typeof issue.params?.code === "string") return issue.params.code;
  return issue.code === "invalid_type" ? "invalid_type" : "invalid_value";
}

/** Returns the first issue and its path; in a union, the issue of the variant that accepts the value's JSON type. */
function firstFault(
  issues: readonly Issue[],
  above: readonly PropertyKey[],
): { issue: Issue; path: readonly PropertyKey[] } {
  const issue = issues[0]!;
  const path = [...above, ...issue.path];
  // The object key at fault is text from the client, which must not be echoed, so the path ends before it.
  if (issue.code === "invalid_key") return { issue, path: path.slice(0, -1) };
  if (issue.code !== "invalid_union") return { issue, path };
  const meant = issue.errors.find(([first]) => first && !isOtherKind(first));
  return meant ? firstFault(meant, path) : { issue, path };
}

function isOtherKind({ code, path }: Issue): boolean {
  return code === "invalid_type" && path.length === 0;
}
