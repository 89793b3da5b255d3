// Computes figures from samples. A result has the shape of its JSON: snake_case, milliseconds and bytes.
import type { Memory, Sample } from "./target.ts";

/** All requests of one mode and concurrency, sent once. */
export type Pass = { mode: string; concurrency: number; samples: Sample[]; ms: number };

/** Maximum TTFT and inter-token latency of a request that counts as good. */
export type Slo = { ttftMs?: number | undefined; itlMs?: number | undefined };

type Metric = "latency" | "ttft" | "inter_token";
type Figure = "avg" | "p50" | "p90" | "p99";

export type Result = {
  mode: string;
  concurrency: number;
  num_requests: number;
  /** Number of passes that were measured. */
  repeat: number;
  /** Figures of the pass with the median throughput; for an even number of passes, the slower of the middle two. */
  total_tokens: number;
  total_time_seconds: number;
  tokens_per_second: number;
  tokens_per_second_min: number;
  tokens_per_second_max: number;
  requests_per_second: number;
  /** Improvement over the mode's first result; absent in that one, and if results are not comparable. */
  speedup?: number;
  /** Requests per second that met the SLO; absent without an SLO. */
  goodput_requests_per_second?: number;
  prompt_tokens: number;
  cached_tokens: number;
  active_bytes?: number;
  rss_bytes?: number;
} & Record<`${Figure}_${Metric}_ms`, number>;

/** Computes one result per mode and concurrency, in the order of their first passes. */
export function resultsOf(passes: readonly Pass[], slo: Slo = {}): Result[] {
  const groups = Map.groupBy(passes, ({ mode, concurrency }) => `${mode} ${concurrency}`);
  return [...groups.values()].map((group) => resultOf(group, slo));
}

function resultOf(passes: readonly Pass[], slo: Slo): Result {
  const ranked = passes.toSorted((a, b) => speedOf(a) - speedOf(b));
  const [slowest, fastest] = [ranked[0]!, ranked.at(-1)!];
  const median = ranked[Math.floor((ranked.length - 1) / 2)]!;
  const samples = passes.flatMap((pass) => pass.samples);
  const seconds = sum(passes.map(({ ms }) => ms)) / 1000;
  const hasLimits = slo.ttftMs !== undefined || slo.itlMs !== undefined;
  const good = samples.filter((sample) => isGood(sample, slo)).length;
  return {
    mode: median.mode,
    concurrency: median.concurrency,
    num_requests: median.samples.length,
    repeat: passes.length,
    total_tokens: tokensOf(median),
    total_time_seconds: rounded(median.ms / 1000),
    tokens_per_second: rounded(speedOf(median)),
    tokens_per_second_min: rounded(speedOf(slowest)),
    tokens_per_second_max: rounded(speedOf(fastest)),
    requests_per_second: rounded((median.samples.length * 1000) / median.ms),
    ...(hasLimits && { goodput_requests_per_second: rounded(good / seconds) }),
    prompt_tokens: sum(median.samples.map((sample) => sample.promptTokens)),
    cached_tokens: sum(median.samples.map((sample) => sample.cachedTokens)),
    ...figures("latency", samples.map(latencyOf)),
    ...figures("ttft", samples.map(ttftOf)),
    ...figures("inter_token", samples.flatMap(gapsOf)),
    // A chunk may carry several tokens, so the mean is per token and not per chunk.
    avg_inter_token_ms: rounded(
      ratio(sum(samples.map(decodeMs)), sum(samples.map(({ tokens }) => Math.max(tokens - 1, 0)))),
    ),
  };
}

export function withMemory(result: Result, { activeBytes, rssBytes }: Memory): Result {
  return {
    ...result,
    ...(activeBytes !== undefined && { active_bytes: activeBytes }),
    ...(rssBytes !== undefined && { rss_bytes: rssBytes }),
  };
}

/** Returns a percentile, interpolated linearly between two values; 0 if there are no values. */
export function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  const at = ((sorted.length - 1) * percent) / 100;
  const [below, above] = [sorted[Math.floor(at)] ?? 0, sorted[Math.ceil(at)] ?? 0];
  return below + (above - below) * (at - Math.floor(at));
}

function figures<M extends Metric>(metric: M, values: readonly number[]) {
  return {
    [`avg_${metric}_ms`]: rounded(ratio(sum(values), values.length)),
    [`p50_${metric}_ms`]: rounded(percentile(values, 50)),
    [`p90_${metric}_ms`]: rounded(percentile(values, 90)),
    [`p99_${metric}_ms`]: rounded(percentile(values, 99)),
  } as Record<`${Figure}_${M}_ms`, number>;
}

const tokensOf = ({ samples }: Pass) => sum(samples.map(({ tokens }) => tokens));
const speedOf = (pass: Pass) => (tokensOf(pass) * 1000) / pass.ms;
const latencyOf = ({ startMs, endMs }: Sample) => endMs - startMs;
const ttftOf = ({ startMs, arrivalsMs }: Sample) => arrivalsMs[0]! - startMs;
const decodeMs = ({ arrivalsMs }: Sample) => arrivalsMs.at(-1)! - arrivalsMs[0]!;
const gapsOf = ({ arrivalsMs }: Sample) => arrivalsMs.slice(1).map((at, i) => at - arrivalsMs[i]!);

function isGood(sample: Sample, { ttftMs = Infinity, itlMs = Infinity }: Slo): boolean {
  return ttftOf(sample) <= ttftMs && ratio(decodeMs(sample), sample.tokens - 1) <= itlMs;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function ratio(a: number, b: number): number {
  return b > 0 ? a / b : 0;
}

/** Rounds to six significant digits; a benchmark is less precise than that. */
export function rounded(value: number): number {
  return Number(value.toPrecision(6));
}
