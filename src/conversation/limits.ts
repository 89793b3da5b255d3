// When an answer ends.

export type Limits = {
  /** 0 generates nothing. By default as many as fit the context. */
  maxTokens?: number | undefined;
  minTokens?: number;
  /** The answer ends before any of these texts. */
  stops?: readonly string[];
  /** The answer ends at any of these tokens. */
  stopTokenIds?: readonly number[];
  /** The answer goes on past the model's end-of-sequence tokens. */
  ignoreEos?: boolean;
  /** The context that is needed, and the request's field: a model with a shorter one is refused. */
  context?: { param: string; tokens: number } | undefined;
};
