// What a request's log line says.
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
   * At debug level: the token at which the prompt parts from the nearest cached one, where it resumed, and the field
   * of the request that the token comes from.
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
  /** Why it was refused, in one word. */
  reason?: string;
  /** Why it failed, for the operator. */
  error?: string;
  /** Settles when the request has ended and is counted, if that is after the handler has returned. */
  over?: Promise<void>;
};
