// What a round of a benchmark says: made of when each token of each request came, and the same for every
// system.

/** Of each request, milliseconds from the start of the round to each of its tokens. */
export type Arrivals = readonly (readonly number[])[];

export type Figures = {
  /** Tokens a second from when every request has its first token, to the end. */
  decode: number;
  /** The same up to the end of the first request that ends: all of them run. */
  fullBatch?: number | undefined;
  /** Tokens a second of the whole round, prefill included. */
  endToEnd: number;
  firstMedianMs: number;
  /** All prompts are read. */
  firstMaxMs: number;
  /** Tokens of prompts a second until then. */
  prefill: number;
  /** While all run. */
  stepMs?: number | undefined;
  /** Of the step, how much it takes to read weights, keys and values at the full bandwidth. */
  memoryShare?: number | undefined;
};

/** What a step reads, and how fast it could. */
export type Memory = {
  weightBytes: number;
  kvBytesPerToken: number;
  bytesPerSecond: number;
};

export function figuresOf(arrivals: Arrivals, promptTokens: number, memory: Memory): Figures {
  const firsts = arrivals.map((times) => times[0]!);
  const lasts = arrivals.map((times) => times.at(-1)!);
  const [begun, end] = [Math.max(...firsts), Math.max(...lasts)];
  const tokens = arrivals.flat();
  return {
    decode: perSecond(tokens.filter((time) => time > begun).length, end - begun),
    endToEnd: perSecond(tokens.length, end),
    firstMedianMs: median(firsts),
    firstMaxMs: begun,
    prefill: perSecond(arrivals.length * promptTokens, begun),
    ...fullBatchOf(arrivals, promptTokens, memory),
  };
}

/** Each request's own rate while all run: a step's tokens are not read at quite the same time. */
function fullBatchOf(
  arrivals: Arrivals,
  promptTokens: number,
  memory: Memory,
): Pick<Figures, "fullBatch" | "stepMs" | "memoryShare"> {
  const from = Math.max(...arrivals.map((times) => times[0]!));
  const to = Math.min(...arrivals.map((times) => times.at(-1)!));
  const spans = arrivals.map((times) => {
    const [first, last] = [
      times.findIndex((time) => time >= from),
      times.findLastIndex((time) => time <= to),
    ];
    const tokens = last - first;
    return {
      tokens,
      ms: times[last]! - times[first]!,
      past: promptTokens + (first + 1 + last) / 2,
    };
  });
  if (spans.some(({ tokens, ms }) => tokens < 1 || ms === 0)) return {};
  const fullBatch = spans.reduce((sum, { tokens, ms }) => sum + perSecond(tokens, ms), 0);
  const stepMs = (arrivals.length * 1000) / fullBatch;
  const past = spans.reduce((sum, span) => sum + span.past, 0);
  const bytes = memory.weightBytes + past * memory.kvBytesPerToken;
  return { fullBatch, stepMs, memoryShare: bytes / memory.bytesPerSecond / (stepMs / 1000) };
}

/** The best of each over the rounds: the highest rate and the shortest time. */
export function bestOf(rounds: readonly Figures[]): Figures {
  const values = (key: keyof Figures) =>
    rounds.map((figures) => figures[key]).filter((value) => value !== undefined);
  const most = (key: keyof Figures) => Math.max(...values(key));
  const least = (key: keyof Figures) => Math.min(...values(key));
  const isFull = values("fullBatch").length > 0;
  return {
    decode: most("decode"),
    endToEnd: most("endToEnd"),
    firstMedianMs: least("firstMedianMs"),
    firstMaxMs: least("firstMaxMs"),
    prefill: most("prefill"),
    ...(isFull && {
      fullBatch: most("fullBatch"),
      stepMs: least("stepMs"),
      memoryShare: most("memoryShare"),
    }),
  };
}

/** How many times as fast as a peer, or how long it takes where the peer takes 1. */
export type Against = {
  /** Where there is more than a first token. */
  decode?: number | undefined;
  fullBatch?: number | undefined;
  prefill: number;
  first: number;
};

export function against(own: Figures, peer: Figures): Against {
  return {
    ...(peer.decode > 0 && { decode: own.decode / peer.decode }),
    ...(own.fullBatch && peer.fullBatch && { fullBatch: own.fullBatch / peer.fullBatch }),
    prefill: own.prefill / peer.prefill,
    first: own.firstMedianMs / peer.firstMedianMs,
  };
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.ceil(middle) - 1]! + sorted[Math.floor(middle)]!) / 2;
}

function perSecond(tokens: number, ms: number): number {
  return tokens === 0 ? 0 : (tokens * 1000) / ms;
}
