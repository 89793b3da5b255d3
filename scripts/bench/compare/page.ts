// Writes docs/benchmarks.md and its chart from the results of scripts/bench/compare.ts.
import { linePlot } from "../../../src/bench/plot.ts";
import type { machine } from "../../../src/bench/report.ts";
import type { Result } from "../../../src/bench/results.ts";
import { formatBytes } from "../../../src/hub/bytes.ts";

export type Measured = {
  name: string;
  version: string;
  weights: string;
  rssBytes: number;
  /** One per concurrency level. */
  results: readonly Result[];
};

export type Comparison = {
  date: string;
  command: string;
  machine: ReturnType<typeof machine>;
  /** Of what measures. */
  bun: string;
  model: string;
  threads: number;
  requests: number;
  maxTokens: number;
  rounds: number;
  /** The first is the baseline. */
  systems: readonly Measured[];
};

export function picture({ machine, model, threads, rounds, systems }: Comparison): string {
  return linePlot({
    title: "Tokens per second",
    note: `${model}, ${machine.cpu}, ${threads} threads; median of ${rounds}, whiskers from least to most`,
    xLabel: "requests at once",
    lines: systems.map(({ name, results }) => ({
      name,
      points: results.map((result) => ({
        x: result.concurrency,
        y: result.tokens_per_second,
        min: result.tokens_per_second_min,
        max: result.tokens_per_second_max,
      })),
    })),
  });
}

export function page(comparison: Comparison): string {
  const { date, command, machine, systems, rounds, requests, maxTokens, threads } = comparison;
  const [ours, ...others] = systems;
  const levels = ours!.results.map(({ concurrency }) => concurrency);
  const names = systems.map(({ name }) => name);
  const at = (system: Measured, level: number) =>
    system.results.find(({ concurrency }) => concurrency === level)!;
  const perLevel = (head: readonly string[], row: (level: number) => string[]) =>
    table(
      ["at once", ...head],
      levels.map((level) => [String(level), ...row(level)]),
    );
  const milliseconds = (metric: "ttft" | "inter_token") =>
    perLevel(names, (level) =>
      systems.map((system) => {
        const result = at(system, level);
        return `${inMs(result[`p50_${metric}_ms`])} / ${inMs(result[`p99_${metric}_ms`])}`;
      }),
    );
  return `# Benchmarks
Written on ${date.slice(0, 10)} by \`${command}\`, which measures again and rewrites this page.

![Tokens per second by concurrent requests](benchmarks.svg)

${table(
  ["", ""],
  [
    [
      "machine",
      `${machine.cpu}, ${machine.cores} cores, ${formatBytes(machine.memory_bytes)}, ${machine.os}`,
    ],
    ["model", comparison.model],
    ["threads", `${threads} each`],
    ["client", `mlx-serve bench, Bun ${comparison.bun}`],
    ...systems.map(({ name, version, weights }) => [name, `${version}; weights: ${weights}`]),
  ],
)}

## Tokens per second
The median of ${rounds} rounds, in parentheses the minimum and the maximum, and the speedup of ${ours!.name}.

${perLevel(
  [ours!.name, ...others.flatMap(({ name }) => [name, `${ours!.name} / ${name}`])],
  (level) => [
    speed(at(ours!, level)),
    ...others.flatMap((other) => [
      speed(at(other, level)),
      ratio(at(ours!, level).tokens_per_second / at(other, level).tokens_per_second),
    ]),
  ],
)}

## Time to first token in milliseconds
The median and the 99th percentile.

${milliseconds("ttft")}

## Inter-token latency in milliseconds
The median and the 99th percentile, as the client sees it.

${milliseconds("inter_token")}

## Memory
Of the whole process, after all measurements.

${table(
  ["", "resident"],
  systems.map(({ name, rssBytes }) => [name, formatBytes(rssBytes)]),
)}

## How it was measured
- Every system is a server on the same machine, with the same number of threads, and is measured over HTTP by the same
  program, \`mlx-serve bench\`. All of them run at the same time, but only one receives requests.
- They take turns: one level of one system after the other, ${rounds} times.
- A level has ${requests} requests, or as many as its concurrency if that is more. Each request that finishes makes room for the next.
- The prompts are those of the bench, of 5 to some 400 tokens, as plain text. Each has a prefix of its own, so that no prefix
  cache hits. Answers are greedy, have ${maxTokens} tokens each, and are streamed.
- Tokens are counted by the \`usage\` that each server reports.
- llama.cpp is that of node-llama-cpp, with its batching, behind a small server (\`scripts/bench/compare/llama-server.mjs\`). mlx-lm
  is its own \`mlx_lm.server\`.
`;
}

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n");
}

function speed({
  tokens_per_second: median,
  tokens_per_second_min,
  tokens_per_second_max,
}: Result) {
  return `${median.toFixed(1)} (${tokens_per_second_min.toFixed(1)} - ${tokens_per_second_max.toFixed(1)})`;
}

export const ratio = (value: number) => `${value.toFixed(2)}x`;
export const inMs = (ms: number) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0));
