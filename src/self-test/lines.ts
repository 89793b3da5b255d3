// Messages between the self-test and its child processes. A child gets its job as one argument and reports in lines
// of JSON on stdout, unbuffered: if native code crashes, the parent knows the check that was started last.
import { writeSync } from "node:fs";
import type { EngineReport } from "../engine/protocol.ts";
import type { Finding } from "./check.ts";

/** Parts of the self-test, each in its own processes. Measured parts run alone on the machine. */
export const parts = {
  device: { isMeasured: false },
  engine: { isMeasured: false },
  speed: { isMeasured: true },
  "engine's speed": { isMeasured: true },
} as const;
export type Part = keyof typeof parts;

/** Task of a child process. */
export type Job = {
  part: Part;
  /** Index of the first check, and stride to the next: other processes run the checks in between. */
  from: number;
  step: number;
  /** Only checks whose names contain this text are run. */
  only: string;
};

/** Flag of a child process, not public: only the self-test itself starts such processes. */
const JOB = "--self-test-job";

export const jobArgs = (job: Job): string[] => [JOB, JSON.stringify(job)];

export function readJob([first, job]: readonly string[]): Job | undefined {
  return first === JOB && job !== undefined ? (JSON.parse(job) as Job) : undefined;
}

/** A measured speed. */
export type Figure = {
  name: string;
  value: number;
  unit: string;
  /** The speed as a share of a limit measured on this machine. Below `least` it counts as slow. */
  part?: { of: string; value: number; least: number } | undefined;
};

export type Line =
  /** First line: the names of all checks. */
  | { kind: "plan"; checks: readonly string[]; engine?: EngineReport }
  | { kind: "start"; index: number }
  | {
      kind: "done";
      index: number;
      ms: number;
      /** The finding with the largest error relative to its tolerance. */
      finding?: Finding | undefined;
      figures?: readonly Figure[] | undefined;
      /** Why the check failed. */
      problem?: string | undefined;
    };

/** Returns the group of a check: its name without the details. */
export const groupOf = ({ name }: { name: string }) => name.split(":")[0]!;

export function tell(line: Line): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

/** Parses a line of a child's output; undefined if it is no message. */
export function readLine(text: string): Line | undefined {
  try {
    return text.startsWith('{"kind":') ? (JSON.parse(text) as Line) : undefined;
  } catch {
    return undefined;
  }
}

export type Outcome = Pick<Extract<Line, { kind: "done" }>, "finding" | "figures" | "problem">;

/** Runs a job's checks. Reports an error that a check throws as that check's problem. */
export async function perform<T extends { name: string }>(
  checks: readonly T[],
  { from, step }: Job,
  run: (check: T) => Outcome | Promise<Outcome>,
): Promise<void> {
  for (let index = from; index < checks.length; index += step) {
    tell({ kind: "start", index });
    const startMs = performance.now();
    let outcome: Outcome;
    try {
      outcome = await run(checks[index]!);
    } catch (error) {
      outcome = { problem: error instanceof Error ? error.message : String(error) };
    }
    tell({ kind: "done", index, ms: performance.now() - startMs, ...outcome });
  }
}
