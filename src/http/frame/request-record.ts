// The fields of a request's log line.
import type { Priority } from "../../engine/protocol.ts";

/** Fields of the log line, set while the request is handled. */
export type RequestRecord = {
  readonly id: string;
  model?: string;
  tier?: Priority;
  promptTokens?: number;
  cachedTokens?: number;
  completionTokens?: number;
  queueMs?: number;
  ttftMs?: number;
  /**
   * At debug level, for the first prompt token that is not cached: its index and text, the token at that index in the
   * most similar cached prefix, the position where computation resumed, and the token's request field.
   */
  prefixMiss?: {
    at: number;
    token: string;
    cached: string | undefined;
    resumed: number;
    field: string | undefined;
  };
  finish?: string;
  /** The prompt; set only with --log-prompts. */
  prompt?: unknown;
  /** Short identifier of the error that the client got. */
  reason?: string;
  /** Error message for the operator. */
  error?: string;
  /** Settles when a response that outlives its handler has ended and its tokens are counted. */
  over?: Promise<void>;
};
