// What can go wrong with a grammar on the main thread.
import type { ErrorAnswer } from "../error-answer.ts";

/** The grammar cannot be compiled; the message is for the client that sent it. */
export class GrammarError extends Error {
  override name = "GrammarError";
}

/** Too many grammars of one key wait to be compiled. */
export class GrammarsBusyError extends Error {
  override name = "GrammarsBusyError";
  readonly answer: ErrorAnswer = {
    status: 429,
    message: "Too many grammars are being compiled.",
    code: "queue_full",
  };

  constructor() {
    super("too many grammars wait to be compiled");
  }
}

/** A serving thread failed twice at a grammar that had compiled on trial. */
export class GrammarThreadError extends Error {
  override name = "GrammarThreadError";
  readonly answer: ErrorAnswer = {
    status: 503,
    message: "Grammars cannot be compiled at the moment.",
  };

  constructor() {
    super("the grammar thread has ended");
  }
}
