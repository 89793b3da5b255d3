// The benchmark's modes: the requests each one sends, and the figures it reports.
import { randomInt } from "node:crypto";
import type { Priority } from "../engine/protocol.ts";
import { longText, sharedText } from "./prompts.ts";
import { type Pass, type Result, resultsOf, rounded, type Slo, withMemory } from "./results.ts";
import type { BenchRequest, Sample, Target } from "./target.ts";

export type Bench = {
  target: Target;
  prompts: readonly string[];
  requests: number;
  maxTokens: number;
  /** Concurrency levels of a sweep. */
  levels: readonly number[];
  /** Called after each answer. */
  onAnswer?(): void;
};

export type Mode = {
  text: string;
  /** Returns the number of requests per pass. */
  count(bench: Pick<Bench, "requests" | "levels">): number;
  pass(bench: Bench): Promise<Pass[]>;
  /** The most important figure of the mode, which the chart shows. */
  shows: { key: "tokens_per_second" | "p50_ttft_ms" | "p99_inter_token_ms"; label: string };
  /** Returns a result's improvement over the first one; modes without comparable results omit this function. */
  speedup?(first: Result, result: Result): number;
  /** Returns a sentence that sums up the results. */
  verdict(results: readonly Result[]): string;
};

export type ModeName = "single" | "batched" | "compare" | "sweep" | "prefix" | "mixed" | "priority";

const throughput: Mode["shows"] = { key: "tokens_per_second", label: "tokens per second" };

const faster: Mode["speedup"] = (first, result) =>
  result.tokens_per_second / first.tokens_per_second;

const speedOf = ({ tokens_per_second: speed }: Result) => `${speed.toFixed(1)} tokens/s`;

export const modes: Record<ModeName, Mode> = {
  single: {
    text: "sequential requests",
    count: ({ requests }) => requests,
    pass: async (bench) => [await send(bench, "single", 1, asked(bench))],
    shows: throughput,
    verdict: ([single]) => `sequential: ${speedOf(single!)}`,
  },
  batched: {
    text: "concurrent requests",
    count: ({ requests }) => requests,
    pass: async (bench) => [await send(bench, "batched", bench.requests, asked(bench))],
    shows: throughput,
    verdict: ([batched]) => `${batched!.concurrency} at once: ${speedOf(batched!)}`,
  },
  compare: {
    text: "the same requests sequentially, then concurrently",
    count: ({ requests }) => 2 * requests,
    pass: async (bench) => [
      await send(bench, "single", 1, asked(bench)),
      await send(bench, "batched", bench.requests, asked(bench)),
    ],
    shows: throughput,
    speedup: faster,
    verdict: ([, batched]) =>
      `speedup: ${batched!.concurrency} at once are ${batched!.speedup!.toFixed(2)} times as fast as one after the other`,
  },
  sweep: {
    text: "increasing concurrency",
    count: ({ requests, levels }) =>
      levels.reduce((sum, level) => sum + Math.max(requests, level), 0),
    async pass(bench) {
      const passes: Pass[] = [];
      for (const level of bench.levels) {
        const requests = asked(bench, Math.max(bench.requests, level));
        passes.push(await send(bench, "sweep", level, requests));
      }
      return passes;
    },
    shows: throughput,
    speedup: faster,
    verdict(results) {
      const best = results.reduce((a, b) => (b.tokens_per_second > a.tokens_per_second ? b : a));
      const gain = best.speedup ? `, ${best.speedup.toFixed(2)} times the first` : "";
      return `the most: ${speedOf(best)} with ${best.concurrency} at once${gain}`;
    },
  },
  prefix: {
    text: "prompts with a long prefix, uncached and then cached",
    count: ({ requests }) => 2 * requests,
    async pass(bench) {
      const beginnings = Array.from({ length: bench.requests }, () => fresh(sharedText));
      const ask = (question: string) =>
        beginnings.map((text) => ({
          prompt: `${text}\n\n${question}`,
          maxTokens: bench.maxTokens,
        }));
      return [
        await send(bench, "prefix_cold", 1, ask("What happened first?")),
        await send(bench, "prefix_warm", 1, ask("Who is named here?")),
      ];
    },
    shows: { key: "p50_ttft_ms", label: "milliseconds to the first token, median" },
    speedup: (cold, warm) => cold.p50_ttft_ms / warm.p50_ttft_ms,
    verdict: ([, warm]) =>
      `a cached prefix gives the first token ${warm!.speedup!.toFixed(2)} times as soon`,
  },
  mixed: {
    text: "long prompts arriving while answers stream",
    count: ({ requests }) => 2 * requests + quarter(requests),
    async pass(bench) {
      const alone = await send(bench, "mixed_alone", bench.requests, asked(bench));
      const begun = Promise.withResolvers<void>();
      let waiting = bench.requests;
      const streams = send(bench, "mixed_busy", bench.requests, asked(bench), () => {
        waiting -= 1;
        if (waiting === 0) begun.resolve();
      });
      const long = Array.from({ length: quarter(bench.requests) }, () => {
        return { prompt: fresh(longText), maxTokens: Math.min(bench.maxTokens, 8) };
      });
      const read = begun.promise.then(() => send(bench, "mixed_long", 1, long));
      return [alone, ...(await Promise.all([streams, read]))];
    },
    shows: { key: "p99_inter_token_ms", label: "p99 inter-token latency in milliseconds" },
    verdict: ([alone, busy]) =>
      `p99 inter-token latency: ${inMs(alone!.p99_inter_token_ms)}, and ${inMs(busy!.p99_inter_token_ms)} during prefill of long prompts`,
  },
  priority: {
    text: "a few high-priority requests among many low-priority ones",
    count: ({ requests }) => requests + quarter(requests),
    async pass(bench) {
      const begun = Promise.withResolvers<void>();
      const few = quarter(bench.requests);
      const many = asked(bench, bench.requests, "LOW");
      const low = send(bench, "priority_low", many.length, many, () => begun.resolve());
      const high = begun.promise.then(() =>
        send(bench, "priority_high", few, asked(bench, few, "HIGH")),
      );
      return await Promise.all([low, high]);
    },
    shows: { key: "p50_ttft_ms", label: "milliseconds to the first token, median" },
    verdict: ([low, high]) =>
      `median TTFT: ${inMs(low!.p50_ttft_ms)} at low priority, ${inMs(high!.p50_ttft_ms)} at high`,
  },
};

export type Repeats = {
  /** Number of passes before the measurement, with short answers. */
  warmup: number;
  repeat: number;
  slo?: Slo;
};

export async function measure(mode: Mode, bench: Bench, repeats: Repeats): Promise<Result[]> {
  const { warmup, repeat, slo } = repeats;
  const short = { ...bench, maxTokens: Math.min(bench.maxTokens, 4) };
  for (let i = 0; i < warmup; i++) await mode.pass(short);
  const passes: Pass[] = [];
  for (let i = 0; i < repeat; i++) passes.push(...(await mode.pass(bench)));
  const memory = await bench.target.memory();
  const [first, ...others] = resultsOf(passes, slo).map((result) => withMemory(result, memory));
  const { speedup } = mode;
  if (!speedup) return [first!, ...others];
  return [first!, ...others.map((each) => ({ ...each, speedup: rounded(speedup(first!, each)) }))];
}

/** Sends requests, with a fixed number in flight. */
async function send(
  { target, onAnswer }: Bench,
  mode: string,
  concurrency: number,
  requests: readonly BenchRequest[],
  onFirst?: () => void,
): Promise<Pass> {
  const samples: Sample[] = [];
  const left = requests.values();
  const start = performance.now();
  const lane = async () => {
    for (const request of left) {
      samples.push(await target.send(request, onFirst));
      onAnswer?.();
    }
  };
  await Promise.all(Array.from({ length: concurrency }, lane));
  return { mode, concurrency, samples, ms: performance.now() - start };
}

function asked(
  { prompts, requests, maxTokens }: Bench,
  count: number = requests,
  priority?: Priority,
): BenchRequest[] {
  return Array.from({ length: count }, (_, i) => ({
    prompt: fresh(prompts[i % prompts.length]!),
    maxTokens,
    ...(priority && { priority }),
  }));
}

/** Prepends a unique text, so that the prompt misses the prefix cache. */
function fresh(prompt: string): string {
  return `Note ${randomInt(1e7, 1e8)}. ${prompt}`;
}

const quarter = (requests: number) => Math.ceil(requests / 4);
const inMs = (ms: number) => `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
