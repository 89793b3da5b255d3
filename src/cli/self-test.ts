// mlx-serve doctor --self-test: shows progress, then passed, failed and slow checks. The report contains all results,
// and no personal data.
import { writeFileSync } from "node:fs";
import {
  arch,
  availableParallelism,
  cpus,
  homedir,
  platform,
  release,
  tmpdir,
  totalmem,
} from "node:os";
import { backend, carried, findLibrary } from "../../ffi/native.ts";
import { version } from "../../package.json";
import type { EngineReport } from "../engine/protocol.ts";
import { type Figure, groupOf } from "../self-test/lines.ts";
import { type Result, selfTest } from "../self-test/self-test.ts";
import { describeEngine } from "./engine-report.ts";
import { ownProgram } from "./server/own-program.ts";
import { print } from "./terminal/print.ts";
import { ProgressLine } from "./terminal/progress.ts";
import { table } from "./terminal/table.ts";

export async function runSelfTest({
  only,
  report,
  json,
}: {
  only: string;
  report: string | undefined;
  json: boolean | undefined;
}): Promise<void> {
  // Creates the report before the checks run, so that an unwritable path is an error at once.
  if (report !== undefined) writeFileSync(report, "");
  const startMs = performance.now();
  const library = findLibrary();
  let engine: EngineReport | undefined;
  const progress = new ProgressLine({ json });
  let group: string | undefined;
  const results = await selfTest({
    program: ownProgram(),
    only,
    processes: processCount(),
    onEngine: (found) => {
      if (engine) return;
      engine = found;
      progress.clear();
      if (!json) print(`${describeEngine(found, library)}\n`);
    },
    onStart: (part, name, index, count) => {
      const isNew = groupOf({ name }) !== group;
      group = groupOf({ name });
      const shown = process.stderr.isTTY ? name : group;
      const event = { event: "checks", done: index, total: count, part, check: name } as const;
      progress.show(event, `[${index + 1}/${count}] ${shown}`, isNew);
    },
    onDone: (result) => {
      if (result.problem !== undefined && !json) progress.tell(failure(result));
    },
  });
  progress.clear();
  const seconds = (performance.now() - startMs) / 1000;
  const written = JSON.stringify(reportOf(results, engine, seconds), null, 2);
  if (report !== undefined) writeFileSync(report, `${written}\n`);
  print(json ? written : summary(results, seconds));
  if (results.length === 0 || results.some(isFailed)) process.exitCode = 1;
}

/** Returns the number of processes: several on CUDA, where single-threaded kernel compilation takes longest. */
function processCount(): number {
  return backend() === "cuda" ? Math.min(8, Math.ceil(availableParallelism() / 2)) : 1;
}

const isFailed = ({ problem }: Result) => problem !== undefined;

const failure = ({ name, problem }: Result) => `failed: ${name} (${problem})`;

function summary(results: readonly Result[], seconds: number): string {
  const groups = [...Map.groupBy(results, groupOf)].map(([group, own]) => {
    const failed = own.filter(isFailed).length;
    const ms = own.reduce((sum, each) => sum + each.ms, 0);
    const verdict = failed > 0 ? `${failed} of ${own.length} failed` : "passed";
    return [group, String(own.length), verdict, `${(ms / 1000).toFixed(1)} s`];
  });
  const figures = results.flatMap((each) => each.figures ?? []);
  const failed = results.filter(isFailed);
  const slow = figures.filter(isSlow);
  const count = `${results.length} checks in ${seconds.toFixed(0)} s`;
  const verdicts = [
    failed.length > 0 ? `${failed.length} of ${count} failed:` : `${count}: all passed`,
    ...failed.map((each) => `  ${failure(each)}`),
    ...(slow.length > 0 ? [`slow: ${slow.map(({ name }) => name).join(", ")}`] : []),
  ];
  return [
    table(["what", "checks", "", "took"], groups),
    ...(figures.length > 0 ? [table(["throughput", "", ""], figures.map(figureRow))] : []),
    results.length > 0 ? verdicts.join("\n") : "no check has this name",
  ].join("\n\n");
}

/** Returns whether a figure reaches less than the expected fraction of the machine's limit. */
function isSlow({ part }: Figure): boolean {
  return part !== undefined && part.value < part.least;
}

function figureRow(figure: Figure): string[] {
  const { name, value, unit, part } = figure;
  const told = part ? `${(100 * part.value).toFixed(0)}% of ${part.of}` : "";
  const shown = value >= 100 ? value.toFixed(0) : value.toPrecision(3);
  return [name, `${shown} ${unit}`, isSlow(figure) ? `${told}, slow` : told];
}

/** Removes paths that identify the user. */
function withoutFolders(text: string): string {
  return text.replaceAll(tmpdir(), "<tmp>").replaceAll(homedir(), "~");
}

function reportOf(results: readonly Result[], engine: EngineReport | undefined, seconds: number) {
  const failed = results.filter(isFailed).length;
  return {
    mlxServe: version,
    from: carried ? `the executable for ${carried}` : "a checkout",
    bun: Bun.version,
    date: new Date().toISOString(),
    system: {
      platform: `${platform()} ${arch()}`,
      release: release(),
      processor: cpus()[0]?.model.trim(),
      cores: cpus().length,
      memoryBytes: totalmem(),
    },
    engine,
    passed: failed === 0 && results.length > 0,
    checks: { all: results.length, failed },
    seconds: Number(seconds.toFixed(1)),
    results: results.map(({ figures, ...each }) => ({
      ...each,
      ...(each.problem !== undefined && { problem: withoutFolders(each.problem) }),
      ms: Math.round(each.ms),
      passed: each.problem === undefined,
    })),
    figures: results.flatMap((each) =>
      (each.figures ?? []).map((figure) => ({ ...figure, isSlow: isSlow(figure) })),
    ),
  };
}
