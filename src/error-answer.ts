// Answers of errors to the client. An error that a client may cause or must hear of carries its answer, from which
// src/http makes a response. All others are internal errors, which reveal nothing.

export type ErrorAnswer = {
  /** HTTP status. With 429 and 503 the client may retry a second later. */
  status: number;
  message: string;
  code?: string;
  /** The request's field; "prompt" stands for the field that has the prompt. */
  param?: "model" | "prompt";
};

export function answerOf(error: unknown): ErrorAnswer | undefined {
  return error instanceof Error && "answer" in error ? (error.answer as ErrorAnswer) : undefined;
}

/** An error's message as a sentence. */
export function sentence(message: string): string {
  return `${message[0]!.toUpperCase()}${message.slice(1)}.`;
}
