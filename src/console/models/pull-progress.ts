// How far a pull is, and how long it will take.
import type { OllamaPullStatus } from "../../api/ollama/models.ts";

export type Pull = {
  name: string;
  status: string;
  completed: number;
  total: number;
  /** When it began, and how much was there then. */
  startMs: number;
  startBytes: number | undefined;
  controller: AbortController;
};

/** The pull after what the server has told of it. */
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

/** At the speed so far; undefined while that is unknown. */
export function msLeft(
  { completed, total, startMs, startBytes }: Pull,
  nowMs = performance.now(),
): number | undefined {
  const [bytes, ms] = [completed - (startBytes ?? completed), nowMs - startMs];
  return bytes > 0 ? ((total - completed) * ms) / bytes : undefined;
}
