// What the self-test tells a child: one argument. What a child tells: a line of JSON each on standard output, written at
// once, so that what was started last is known when native code ends the process.
import { writeSync } from "node:fs";
import type { EngineReport } from "../engine/protocol.ts";
import type { Finding } from "./check.ts";

/** Each is run by processes of its own: the device's kernels and operations, the engine, how fast they are. */
export const parts = ["device", "engine", "speed"] as const;
export type Part = (typeof parts)[number];

/** What a child is to do. */
export type Job = {
  part: Part;
  /** The index of the first check. */
  from: number;
  /** Checks with this in their names. */
  only: string;
};

/** No flag of the command line: only the self-test itself starts such a process. */
const JOB = "--self-test-job";

export const jobArgs = (job: Job): string[] => [JOB, JSON.stringify(job)];

export function readJob([first, job]: readonly string[]): Job | undefined {
  return first === JOB && job !== undefined ? (JSON.parse(job) as Job) : undefined;
}

/** How fast something is. */
export type Figure = {
  name: string;
  value: number;
  unit: string;
  /** Of what this machine's memory or its products allow, as measured here too. */
  part?: { of: string; value: number; least: number } | undefined;
};

export type Line =
  /** First of all: what there is to check. */
  | { kind: "plan"; checks: readonly string[]; engine?: EngineReport }
  | { kind: "start"; index: number }
  | {
      kind: "done";
      index: number;
      ms: number;
      /** Of what was compared, what differs most, as a part of what is allowed. */
      finding?: Finding | undefined;
      figures?: readonly Figure[] | undefined;
      /** Why it has failed. */
      problem?: string | undefined;
    };

/** What a check belongs to: its name up to the details. */
export const groupOf = ({ name }: { name: string }) => name.split(":")[0]!;

export function tell(line: Line): void {
  writeSync(1, `${JSON.stringify(line)}\n`);
}

/** A line that is none of ours is undefined. */
export function readLine(text: string): Line | undefined {
  try {
    return text.startsWith('{"kind":') ? (JSON.parse(text) as Line) : undefined;
  } catch {
    return undefined;
  }
}

export type Outcome = Pick<Extract<Line, { kind: "done" }>, "finding" | "figures" | "problem">;

/** Runs the checks from one of them on. What one throws is its problem. */
export async function perform<T extends { name: string }>(
  checks: readonly T[],
  from: number,
  run: (check: T) => Outcome | Promise<Outcome>,
): Promise<void> {
  for (const [index, check] of checks.entries()) {
    if (index < from) continue;
    tell({ kind: "start", index });
    const startMs = performance.now();
    let outcome: Outcome;
    try {
      outcome = await run(check);
    } catch (error) {
      outcome = { problem: error instanceof Error ? error.message : String(error) };
    }
    tell({ kind: "done", index, ms: performance.now() - startMs, ...outcome });
  }
}
