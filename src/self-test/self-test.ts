// Runs the self-test's checks in child processes. If native code crashes one, the check that was running fails, and a
// new process continues with the next check.
import type { EngineReport } from "../engine/protocol.ts";
import { linesOf } from "../lines.ts";
import type { Finding } from "./check.ts";
import { type Figure, type Job, jobArgs, type Line, type Part, parts, readLine } from "./lines.ts";

export type Result = {
  part: Part;
  name: string;
  ms: number;
  finding?: Finding | undefined;
  figures?: readonly Figure[] | undefined;
  problem?: string | undefined;
};

export type SelfTestOptions = {
  /** Command of a child process, without its arguments. */
  program: readonly string[];
  /** Only checks whose names contain this text are run. */
  only?: string | undefined;
  /** Number of processes at once; measured parts always run alone. */
  processes?: number;
  /** Timeout of a check in milliseconds. */
  checkMs?: number;
  onStart?: (part: Part, name: string, index: number, count: number) => void;
  onDone?: (result: Result) => void;
  onEngine?: (report: EngineReport) => void;
};

/** Default timeout. On a GPU a check may compile a dozen kernels, and MLX's kernels may take a minute each. */
const CHECK_MS = 300_000;

export async function selfTest(options: SelfTestOptions): Promise<Result[]> {
  const results: Result[] = [];
  const onDone = (result: Result) => {
    // Reports a problem once if several processes fail to start for the same reason.
    const isSame = ({ part, name, problem }: Result) =>
      part === result.part && name === result.name && problem === result.problem;
    if (results.some(isSame)) return;
    results.push(result);
    options.onDone?.(result);
  };
  for (const [part, { isMeasured }] of Object.entries(parts) as [Part, { isMeasured: boolean }][]) {
    let started = 0;
    const onStart: SelfTestOptions["onStart"] = (_, name, _index, count) =>
      options.onStart?.(part, name, started++, count);
    const step = isMeasured ? 1 : (options.processes ?? 1);
    const shares = Array.from({ length: step }, (_, from) =>
      testShare({ part, from, step, only: options.only ?? "" }, { ...options, onStart, onDone }),
    );
    await Promise.all(shares);
  }
  return results;
}

/** Runs a job's checks in a process. After each crash a new process runs the remaining checks. */
async function testShare(
  job: Job,
  options: SelfTestOptions & { onDone: (result: Result) => void },
) {
  const { part, step } = job;
  for (let { from } = job; ; ) {
    const child = new Child({ ...job, from }, options);
    const end = await child.ended();
    const { running, checks } = child;
    if (end === undefined && running === undefined && checks) return;
    const problem = end ?? "exited before it was done";
    // If the process ended between checks, reports the failure for the process itself and runs no further checks.
    const index = running ?? checks?.length ?? 0;
    const name = checks?.[index] ?? `the ${part} part's own process`;
    options.onDone({ part, name, ms: child.runningMs, problem });
    from = index + step;
    if (!checks || from >= checks.length) return;
  }
}

class Child {
  readonly #part: Part;
  readonly #options: SelfTestOptions & { onDone: (result: Result) => void };
  readonly #process: Bun.Subprocess<"ignore", "pipe", "pipe">;
  readonly #errors: Promise<string>;
  #startMs = performance.now();
  #isLate = false;
  checks: readonly string[] | undefined;
  /** Index of the running check; undefined between checks. */
  running: number | undefined;

  constructor(job: Job, options: SelfTestOptions & { onDone: (result: Result) => void }) {
    const { part } = job;
    this.#part = part;
    this.#options = options;
    const args = jobArgs(job);
    this.#process = Bun.spawn([...options.program, "doctor", ...args], {
      // Disables TF32, which exceeds the tolerances of the checks, except for measured parts.
      env: { ...process.env, ...(!parts[part].isMeasured && { MLX_ENABLE_TF32: "0" }) },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#errors = new Response(this.#process.stderr).text();
  }

  get runningMs(): number {
    return performance.now() - this.#startMs;
  }

  /** Waits for the process to end, and describes how it failed; undefined if it succeeded. */
  async ended(): Promise<string | undefined> {
    const { checkMs = CHECK_MS } = this.#options;
    const timer = setInterval(() => {
      if (this.runningMs < checkMs) return;
      this.#isLate = true;
      this.#process.kill("SIGKILL");
    }, 200);
    for await (const line of linesOf(this.#process.stdout)) this.#read(readLine(line));
    const exitCode = await this.#process.exited;
    clearInterval(timer);
    if (this.#isLate) return `took longer than ${checkMs / 1000} s`;
    if (exitCode === 0) return undefined;
    return describeEnd(this.#process.signalCode, exitCode, await this.#errors);
  }

  #read(line: Line | undefined): void {
    this.#startMs = line?.kind === "done" ? this.#startMs : performance.now();
    switch (line?.kind) {
      case "plan":
        this.checks = line.checks;
        if (line.engine) this.#options.onEngine?.(line.engine);
        break;
      case "start": {
        const { index } = line;
        this.running = index;
        const { length } = this.checks!;
        this.#options.onStart?.(this.#part, this.checks![index]!, index, length);
        break;
      }
      case "done": {
        const { kind: _, index, ...outcome } = line;
        this.running = undefined;
        this.#options.onDone({ part: this.#part, name: this.checks![index]!, ...outcome });
        break;
      }
    }
  }
}

/** Describes how a process ended: signal or exit code, and the error in stderr (Bun changes a segfault's signal). */
function describeEnd(
  signal: Bun.Subprocess["signalCode"],
  exitCode: number,
  errors: string,
): string {
  const fault =
    /(Segmentation fault|Bus error|Illegal instruction|Floating point error)[^\n]*/.exec(errors);
  const said =
    fault?.[0] ??
    errors
      .trim()
      .split("\n")
      .at(-1)!
      .replace(/^mlx-serve: /, "");
  const how = signal ? `ended by ${signal}` : `exited with code ${exitCode}`;
  return said ? `${how}: ${said}` : how;
}
