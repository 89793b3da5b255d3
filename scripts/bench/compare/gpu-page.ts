// Writes the GPU part of docs/benchmarks.md and its charts from the results of scripts/bench/gpu-peers.ts.
import { linePlot } from "../../../src/bench/plot.ts";
import type { Figures } from "../gpu/figures.ts";
import type { Report, Result } from "../gpu/report.ts";
import type { Load } from "../gpu/systems.ts";
import { inMs, ratio, table } from "./page.ts";

export type GpuRun = {
  /** Its name on the page. */
  title: string;
  report: Report;
};

/** Arguments of bench:gpu-peers; models and loads are comma-separated. */
export type GpuSettings = Record<"models" | "peers" | "loads" | "new" | "rounds", string>;

export type GpuComparison = {
  date: string;
  settings: GpuSettings;
  runs: readonly GpuRun[];
};

/** Merges runs with some of the models or loads each. */
export function joined(parts: readonly GpuComparison[]): GpuComparison {
  const [first] = parts;
  if (!first) throw new Error("nothing was measured");
  const list = (key: keyof GpuSettings) =>
    [...new Set(parts.flatMap(({ settings }) => settings[key].split(",")))].join(",");
  const runs = new Map<string, GpuRun>();
  for (const { title, report } of parts.flatMap((part) => part.runs)) {
    const before = runs.get(title)?.report;
    const results = [...(before?.results ?? []), ...report.results];
    const versions = { ...before?.versions, ...report.versions };
    runs.set(title, { title, report: { ...report, results, versions } });
  }
  const settings = { ...first.settings, models: list("models"), loads: list("loads") };
  return { ...first, settings, runs: [...runs.values()] };
}

const HEADING = "## On a GPU";
const OURS = "mlx-serve";

/** Appends this part to the page of the other benchmarks, or replaces it there. */
export function withGpuPart(page: string, part: string | undefined): string {
  const [before] = page.split(`\n${HEADING}\n`);
  return part ? `${before!.trimEnd()}\n\n${part}` : page;
}

export function gpuPartOf(page: string): string | undefined {
  const at = page.indexOf(`\n${HEADING}\n`);
  return at < 0 ? undefined : page.slice(at + 1);
}

/** The file name of a run's chart. */
export function gpuPictureName({ title }: GpuRun): string {
  return `benchmarks-${title.toLowerCase().replace(/[^a-z0-9.]+/g, "-")}.svg`;
}

/** The longest series of loads that differ only in concurrency. */
export function gpuPicture({ title, report }: GpuRun, { rounds }: GpuSettings): string {
  const alike = Map.groupBy(report.results, (result) => `${result.prompt} ${result.new}`);
  const results = [...alike.values()].reduce((a, b) => (b.length > a.length ? b : a), []);
  const prompt = results[0]?.prompt ?? 0;
  const lines = systemsOf(report).map((name) => ({
    name,
    points: results.flatMap((result) => {
      const y = result.system === name ? result.best?.fullBatch : undefined;
      if (y === undefined) return [];
      const all = result.rounds.flatMap(({ fullBatch = [] }) => fullBatch);
      return [{ x: result.requests, y, min: Math.min(...all), max: Math.max(...all) }];
    }),
  }));
  return linePlot({
    title: "Tokens per second, decoding",
    note: `${title}, ${report.device}, prompts of ${prompt} tokens; the best of ${rounds}, whiskers from least to most`,
    xLabel: "requests at once",
    lines: lines.filter(({ points }) => points.length > 0),
  });
}

export function gpuPart({ date, settings, runs }: GpuComparison): string {
  const [first] = runs;
  if (!first) throw new Error("nothing was measured");
  const { rounds } = settings;
  const flags = Object.entries(settings).map(([flag, value]) => `--${flag} ${value}`);
  const command = `npm run -s bench:gpu-peers -- ${flags.join(" ")}`;
  const versions = Object.assign({}, ...runs.map(({ report }) => report.versions));
  const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return `${HEADING}
Written on ${date.slice(0, 10)} by \`${command}\`, on ${first.report.device}.

mlx-serve with MLX ${first.report.mlxVersion} beside ${named.join(" and ")}, with random weights. A load is how many requests come at
once, tokens of each prompt, and new tokens of each. Figures are the best of ${rounds} rounds; above 1x mlx-serve is the faster one.

${runs.map((run) => runPart(run)).join("\n")}
### How it was measured on a GPU
- All systems are on one GPU at the same time, each with memory for these loads, and take turns: one load of one after the
  other, ${rounds} times after a round that does not count. mlx-serve is measured by its engine's API, mlx-lm by its BatchGenerator,
  and vLLM by its LLMEngine, in the process that asks, without HTTP and text.
- Prompts are random tokens, so that no prefix cache hits. Answers are greedy and have all their tokens.
- Decoding is while all requests run. Prompts are read when every request has its first token.
- The memory's limit is to read the weights, keys and values of each step once, at the GPU's full bandwidth.
`;
}

function runPart(run: GpuRun): string {
  const { title, report } = run;
  const systems = systemsOf(report);
  const peers = systems.filter((name) => name !== OURS);
  const loads = loadsOf(report);
  const cells = (value: (figures: Figures) => string | undefined, ratioOf: RatioOf) => {
    const rows = loads.map((load) => {
      const at = (name: string) => resultAt(report, name, load);
      const shown = (name: string) => {
        const best = at(name)?.best;
        return (best && value(best)) ?? "-";
      };
      const against = (peer: string) => {
        const times = ratioOf(at(OURS)?.against[peer]);
        return times === undefined ? "-" : ratio(times);
      };
      const { requests, prompt, new: tokens } = load;
      return [
        `${requests} x ${grouped(prompt)} + ${grouped(tokens)}`,
        shown(OURS),
        ...peers.flatMap((peer) => [shown(peer), against(peer)]),
      ];
    });
    // Loads with one new token measure only prefill.
    return rows.filter(([, ...found]) => found.some((each) => each !== "-"));
  };
  const head = ["load", OURS, ...peers.flatMap((peer) => [peer, `${OURS} / ${peer}`])];
  return `### ${title}
![Tokens per second by concurrent requests](${gpuPictureName(run)})

Tokens per second, decoding:

${table(
  head,
  cells(
    ({ fullBatch }) => (fullBatch ? grouped(fullBatch) : undefined),
    (against) => against?.fullBatch,
  ),
)}

All prompts read, in milliseconds, and their tokens per second:

${table(
  head,
  cells(
    ({ firstMaxMs, prefill }) => `${inMs(firstMaxMs)} (${grouped(prefill)})`,
    (against) => against?.prefill,
  ),
)}

Time to first token in milliseconds, the median, and the share of the memory's limit while decoding:

${table(
  ["load", ...systems.flatMap((name) => [`${name}, ms`, "share"])],
  loads.map((load) => [
    `${load.requests} x ${grouped(load.prompt)} + ${grouped(load.new)}`,
    ...systems.flatMap((name) => {
      const best = resultAt(report, name, load)?.best;
      return [best ? inMs(best.firstMedianMs) : "-", best?.memoryShare?.toFixed(2) ?? "-"];
    }),
  ]),
)}
`;
}

type RatioOf = (against: Result["against"][string] | undefined) => number | undefined;

/** The first is the baseline. */
function systemsOf({ results }: Report): string[] {
  const names = new Set(results.map(({ system }) => system));
  return [OURS, ...[...names].filter((name) => name !== OURS)];
}

function loadsOf({ results }: Report): Load[] {
  return results.filter(({ system }) => system === OURS);
}

function resultAt({ results }: Report, name: string, load: Load): Result | undefined {
  return results.find(
    ({ system, requests, prompt, new: tokens }) =>
      system === name &&
      requests === load.requests &&
      prompt === load.prompt &&
      tokens === load.new,
  );
}

const grouped = (value: number) => Math.round(value).toLocaleString("en-US");
