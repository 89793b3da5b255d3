// The fields of a request's log line.
import type { Priority } from "../../engine/protocol.ts";

/** Filled in while the request is handled. */
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
   * At debug level: the token at which the prompt diverges from the nearest cached one, the position of resumption, and
   * the request field that contains the token.
   */
  prefixMiss?: {
    at: number;
    token: string;
    cached: string | undefined;
    resumed: number;
    field: string | undefined;
  };
  finish?: string;
  /** Only with --log-prompts. */
  prompt?: unknown;
  /** Short reason of a rejection. */
  reason?: string;
  /** Error message, for the operator. */
  error?: string;
  /** Settles once the request has ended and is counted, if that is after the handler has returned. */
  over?: Promise<void>;
};
