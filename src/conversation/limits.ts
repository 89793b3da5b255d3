// When an answer ends.

export type Limits = {
  /** Maximum tokens of the answer; 0 generates nothing. By default only the context limits it. */
  maxTokens?: number | undefined;
  minTokens?: number;
  /** Stop strings, which are excluded from the answer. */
  stops?: readonly string[];
  stopTokenIds?: readonly number[];
  /** Whether to continue past the model's end-of-sequence tokens. */
  ignoreEos?: boolean;
  /** Context length that the request requires, and the field to name in an error if the model has less. */
  context?: { param: string; tokens: number } | undefined;
};
