// What an error tells the client. An error that a client may cause, or should hear of, carries its answer; src/http
// makes a response of it. All others are internal errors, which reveal nothing.

export type ErrorAnswer = {
  /** Of HTTP. With 429 and 503 the client may try again a second later. */
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
