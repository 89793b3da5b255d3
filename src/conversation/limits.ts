// When an answer ends.

export type Limits = {
  /** 0 generates nothing; by default limited only by the context. */
  maxTokens?: number | undefined;
  minTokens?: number;
  /** Stop strings, which are excluded from the answer. */
  stops?: readonly string[];
  stopTokenIds?: readonly number[];
  /** Continues past the model's end-of-sequence tokens. */
  ignoreEos?: boolean;
  /** The required context, and the request field for the error if the model has less. */
  context?: { param: string; tokens: number } | undefined;
};
