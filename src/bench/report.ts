// Reports of a measurement: tables for people, and JSON with the machine, versions and command for programs.
import { arch, availableParallelism, cpus, platform, release, totalmem } from "node:os";
import packageJson from "../../package.json" with { type: "json" };
import { formatBytes } from "../hub/bytes.ts";
import type { Result } from "./results.ts";
import type { TargetAbout } from "./target.ts";

export type Report = {
  date: string;
  command: string;
  machine: {
    cpu: string;
    cores: number;
    memory_bytes: number;
    os: string;
    backend?: string;
    device?: string;
  };
  versions: { mlx_serve: string; bun: string; mlx?: string };
  target: { kind: TargetAbout["kind"]; model: string; url?: string; server?: string };
  settings: Record<string, unknown>;
  results: readonly Result[];
};

export function reportOf(
  about: TargetAbout,
  args: readonly string[],
  settings: Record<string, unknown>,
  results: readonly Result[],
): Report {
  const { backend, device, mlxVersion, ...target } = about;
  return {
    date: new Date().toISOString(),
    command: commandOf(args),
    machine: {
      ...machine(),
      ...(backend !== undefined && { backend }),
      ...(device !== undefined && { device }),
    },
    versions: {
      mlx_serve: packageJson.version,
      bun: Bun.version,
      ...(mlxVersion !== undefined && { mlx: mlxVersion }),
    },
    target,
    settings,
    results,
  };
}

export function machine() {
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    cores: availableParallelism(),
    memory_bytes: totalmem(),
    os: `${platform()} ${release().split("-")[0]} ${arch()}`,
  };
}

/** Returns the command line, quoted for a shell and without the API key. */
function commandOf(args: readonly string[]): string {
  const secret = args.map((arg, i) => {
    if (args[i - 1] === "--api-key") return "...";
    return arg.startsWith("--api-key=") ? "--api-key=..." : arg;
  });
  const quoted = secret.map((arg) => {
    return /^[\w./:=,@+-]+$/.test(arg) ? arg : `'${arg.replaceAll("'", "'\\''")}'`;
  });
  return ["mlx-serve", "bench", ...quoted].join(" ");
}

export function tables(results: readonly Result[]): string {
  return `${table(throughputRows(results))}\n\n${table(latencyRows(results))}`;
}

function throughputRows(results: readonly Result[]): string[][] {
  const optional = [
    ["SPEEDUP", ({ speedup }: Result) => speedup?.toFixed(2)],
    ["GOOD/S", (result: Result) => result.goodput_requests_per_second?.toFixed(2)],
    ["MLX", ({ active_bytes: bytes }: Result) => bytes && formatBytes(bytes)],
    ["RSS", ({ rss_bytes: bytes }: Result) => bytes && formatBytes(bytes)],
  ] as const;
  const there = optional.filter(([, value]) => results.some((result) => value(result)));
  return [
    ["MODE", "AT ONCE", "REQUESTS", "TOKENS", "SECONDS", "TOKENS/S", "MIN", "MAX"].concat(
      there.map(([title]) => title),
    ),
    ...results.map((result) => [
      result.mode,
      String(result.concurrency),
      String(result.num_requests),
      String(result.total_tokens),
      result.total_time_seconds.toFixed(2),
      result.tokens_per_second.toFixed(1),
      result.tokens_per_second_min.toFixed(1),
      result.tokens_per_second_max.toFixed(1),
      ...there.map(([, value]) => value(result) || "-"),
    ]),
  ];
}

const metrics = {
  "first token": "ttft",
  "between tokens": "inter_token",
  "whole answer": "latency",
} as const;

function latencyRows(results: readonly Result[]): string[][] {
  return [
    ["MODE", "AT ONCE", "MILLISECONDS", "MEAN", "P50", "P90", "P99"],
    ...results.flatMap((result) =>
      Object.entries(metrics).map(([title, metric]) => [
        result.mode,
        String(result.concurrency),
        title,
        ...(["avg", "p50", "p90", "p99"] as const).map((figure) =>
          result[`${figure}_${metric}_ms`].toFixed(1),
        ),
      ]),
    ),
  ];
}

/** Formats a table; words are aligned left, numbers right. */
function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  const isWord = rows[0]!.map((_, column) => /^[a-z]/.test(rows[1]![column]!));
  return rows
    .map((row) =>
      row
        .map((cell, i) => (isWord[i] ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}
