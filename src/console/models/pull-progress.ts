// Progress of a pull, and its estimated remaining time.
import type { OllamaPullStatus } from "../../api/ollama/models.ts";

export type Pull = {
  name: string;
  status: string;
  completed: number;
  total: number;
  /** Time at which the pull started, and the bytes that were present then. */
  startMs: number;
  startBytes: number | undefined;
  controller: AbortController;
};

/** Applies a status line of the server to the pull. */
export function after(
  before: Pull,
  { status, completed, total }: OllamaPullStatus,
  nowMs = performance.now(),
): Pull {
  if (completed === undefined || total === undefined) return { ...before, status };
  const startBytes = before.startBytes ?? completed;
  const startMs = before.startBytes === undefined ? nowMs : before.startMs;
  return { ...before, status, completed, total, startBytes, startMs };
}

/** Estimates the remaining time from the average speed; undefined while that speed is unknown. */
export function msLeft(
  { completed, total, startMs, startBytes }: Pull,
  nowMs = performance.now(),
): number | undefined {
  const [bytes, ms] = [completed - (startBytes ?? completed), nowMs - startMs];
  return bytes > 0 ? ((total - completed) * ms) / bytes : undefined;
}
