// The answer that a client gets to an error. An error that a client can cause, or should see, has an `answer`, which
// src/http turns into a response. All other errors are internal, and responses to them reveal no details.

export type ErrorAnswer = {
  /** HTTP status. After 429 and 503 the client may retry a second later. */
  status: number;
  message: string;
  code?: string;
  /** Request field that causes the error; "prompt" stands for any field that holds the prompt. */
  param?: "model" | "prompt";
};

export function answerOf(error: unknown): ErrorAnswer | undefined {
  return error instanceof Error && "answer" in error ? (error.answer as ErrorAnswer) : undefined;
}

/** Turns an error's message into a sentence. */
export function sentence(message: string): string {
  return `${message[0]!.toUpperCase()}${message.slice(1)}.`;
}
