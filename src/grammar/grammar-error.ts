// Errors that the main thread reports for grammars.
import type { ErrorAnswer } from "../error-answer.ts";

/** The grammar cannot be compiled; the error's message is for the client that sent the grammar. */
export class GrammarError extends Error {
  override name = "GrammarError";
}

/** The queue of grammars of an API key is full. */
export class GrammarsBusyError extends Error {
  override name = "GrammarsBusyError";
  readonly answer: ErrorAnswer = {
    status: 429,
    message: "Too many grammars are being compiled.",
    code: "queue_full",
  };

  constructor() {
    super("the queue of grammars to compile is full");
  }
}

/** A serving thread failed twice on a grammar that had compiled before, on a trial thread. */
export class GrammarThreadError extends Error {
  override name = "GrammarThreadError";
  readonly answer: ErrorAnswer = {
    status: 503,
    message: "Grammars cannot be compiled at the moment.",
  };

  constructor() {
    super("the grammar thread has exited");
  }
}
