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

/** A user's text, as it may stand in an error: on one line, and short. */
export function quoted(text: string): string {
  return JSON.stringify(text.length > 100 ? `${text.slice(0, 100)}...` : text);
}

/** The system's code of an error (ENOENT, ENOSPC, ...). */
export function codeOf(error: unknown): string | undefined {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? code : undefined;
}
