// What can go wrong with a grammar on the main thread.

/** The grammar cannot be compiled; the message is for the client that sent it. */
export class GrammarError extends Error {
  override name = "GrammarError";
}

/** Too many grammars of one key wait to be compiled. */
export class GrammarsBusyError extends Error {
  override name = "GrammarsBusyError";

  constructor() {
    super("too many grammars wait to be compiled");
  }
}

/** A serving thread failed twice at a grammar that had compiled on trial. */
export class GrammarThreadError extends Error {
  override name = "GrammarThreadError";

  constructor() {
    super("the grammar thread has ended");
  }
}
