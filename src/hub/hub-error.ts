// Errors about model names, the cache and the hub. Each is one line that tells the user how to fix it.
import type { ErrorAnswer } from "../error-answer.ts";

export class HubError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "HubError";
  }
}

/** Thrown if no model on this machine has the name. */
export class ModelNotFoundError extends HubError {
  readonly answer: ErrorAnswer = {
    status: 404,
    message: "The model does not exist: GET /v1/models lists the available models.",
    code: "model_not_found",
    param: "model",
  };

  constructor(message: string) {
    super(message);
    this.name = "ModelNotFoundError";
  }
}

export { quoted } from "../files/load-error.ts";

/** Returns the system's code of an error, such as ENOENT. */
export function codeOf(error: unknown): string | undefined {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? code : undefined;
}
