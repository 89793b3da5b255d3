// Measures how a long prompt delays running streams: their inter-token latency during its prefill.
import { median } from "./figures.ts";
import { type Own, randomPrompts } from "./systems.ts";

export type PrefillGap = {
  /** Inter-token latency of a stream before and during the long prefill. */
  aloneMedianMs: number;
  medianMs: number;
  longestMs: number;
  /** Ratio of the longest to the median. */
  ratio: number;
  /** TTFT of the long prompt. */
  firstMs: number;
};

export type GapLoad = { streams: number; prompt: number; long: number };

/** Tokens per stream before the long prompt arrives. */
const SETTLED = 32;

export async function measurePrefillGap(own: Own, load: GapLoad): Promise<PrefillGap> {
  const { engine, info } = own;
  const submit = (prompt: Uint32Array, maxTokens: number) =>
    engine.submit(info.model, { prompt, maxTokens, sampling: { temperature: 0 } });
  const maxTokens = info.maxLength - load.prompt;
  const prompts = randomPrompts(load.streams, load.prompt, info.vocabulary);
  const running = prompts.map((prompt) => ({
    events: submit(prompt, maxTokens),
    times: [] as number[],
  }));
  let waiting = load.streams;
  const settled = Promise.withResolvers<void>();
  let firstAt = Number.POSITIVE_INFINITY;
  const streams = running.map(async ({ events, times }) => {
    while (!(times.at(-1)! > firstAt)) {
      const read = await events.read();
      if (read.length === 0) throw new Error("a stream ended before the long prefill");
      const now = performance.now();
      for (const _ of read) if (times.push(now) === SETTLED && --waiting === 0) settled.resolve();
    }
    events.leave();
  });
  const reading = Promise.all(streams);
  await Promise.race([settled.promise, reading]);
  const [long] = randomPrompts(1, load.long, info.vocabulary);
  const sentAt = performance.now();
  const answer = submit(long!, 4);
  await answer.read();
  firstAt = performance.now();
  answer.leave();
  await reading;

  const gaps = running.flatMap(({ times }) =>
    times.slice(1).map((to, i) => [times[i]!, to] as const),
  );
  const lengths = (some: typeof gaps) => some.map(([from, to]) => to - from);
  const during = lengths(gaps.filter(([from, to]) => to > sentAt && from < firstAt));
  const before = lengths(gaps.filter(([, to]) => to <= sentAt));
  const [medianMs, longestMs] = [median(during), Math.max(...during)];
  return {
    aloneMedianMs: median(before),
    medianMs,
    longestMs,
    ratio: longestMs / medianMs,
    firstMs: firstAt - sentAt,
  };
}
