// What went wrong with a model's name, the cache or the hub, in one line that says what to do.

export class HubError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "HubError";
  }
}

/** No model goes by that name here. */
export class ModelNotFoundError extends HubError {
  constructor(message: string) {
    super(message);
    this.name = "ModelNotFoundError";
  }
}

export { quoted } from "../files/load-error.ts";

/** The system's code of an error (ENOENT, ENOSPC, ...). */
export function codeOf(error: unknown): string | undefined {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? code : undefined;
}
