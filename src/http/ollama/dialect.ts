// The wire conventions of Ollama's APIs: errors as strings, streams as one JSON line per event.
import { OllamaError } from "../../api/ollama/generate.ts";
import type { Dialect } from "../frame/dialect.ts";
import type { ApiError } from "../frame/errors.ts";

export const ollamaDialect: Dialect = {
  errorSchema: OllamaError,
  refusal: (error) => ({ status: error.status, body: ollamaError(error) }),
  streamType: "application/x-ndjson",
  eventText: (event) => `${JSON.stringify(event)}\n`,
  streamEnd: "",
  prefix: "/api/",
};

/** Error messages by error code; they replace messages that name OpenAI's endpoints. */
const messages: Readonly<Record<string, string>> = {
  model_not_found: "model not found: GET /api/tags lists the available models",
  no_chat_template: "The model has no chat template: use /api/generate with raw.",
};

export function ollamaError({ message, code = "" }: ApiError): OllamaError {
  return { error: messages[code] ?? message };
}
