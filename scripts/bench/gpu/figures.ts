// Computes the figures of a benchmark round from the arrival times of all tokens, in the same way for every system.

/** Per request, milliseconds from the start of the round to each token. */
export type Arrivals = readonly (readonly number[])[];

export type Figures = {
  /** Tokens per second after every request has its first token. */
  decode: number;
  /** The same until the first request ends, so that the batch is full. */
  fullBatch?: number | undefined;
  /** Tokens per second of the whole round, including prefill. */
  endToEnd: number;
  firstMedianMs: number;
  /** Time until the last prefill ends. */
  firstMaxMs: number;
  /** Prompt tokens per second until then. */
  prefill: number;
  /** Duration of a step with a full batch. */
  stepMs?: number | undefined;
  /** Fraction of the step needed to read weights, keys and values at full bandwidth. */
  memoryShare?: number | undefined;
};

/** Bytes read per step, and the bandwidth. */
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

/** Rates per request with a full batch, since a step's tokens do not arrive simultaneously. */
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

/** The best of each figure over the rounds: highest rate, shortest time. */
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

/** Ratios to a peer, of rates and of times. */
export type Against = {
  /** Absent for loads with a single new token. */
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
