// One model at work: its scheduler, its runner, and the requests that it answers.
import type {
  EngineOptions,
  EngineRequest,
  ModelStats,
  Refusal,
  RequestReport,
  RowReport,
  StepReport,
} from "../engine/protocol.ts";
import { StepEvents } from "../engine/step-events.ts";
import type { Matcher, Matchers } from "../grammar/matchers.ts";
import type { BlockPool } from "../kv/blocks.ts";
import { readGauges } from "../kv/blocks.ts";
import { rootKey } from "../kv/prefix.ts";
import type { Launched, StepInputs } from "../model/runner.ts";
import type { Sampled, SampleRow, Sampling, Score } from "../model/sampler.ts";
import { standing } from "../schedule/queue.ts";
import { type Batch, type Outcome, Scheduler } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";
import {
  type Prepared,
  type PromptReading,
  type PromptSum,
  prepare,
  type Wanted,
} from "./inputs.ts";

/** What computes a step: the model's runner, or a test's. */
export type StepRunner = {
  readonly forwards: number;
  readonly depth: number;
  launch(inputs: StepInputs): Launched;
};

export type StepResult = { events: StepEvents; report: StepReport };

type Answer = Wanted & {
  id: number;
  index: number;
  name: string | undefined;
  matcher: Matcher | undefined;
  /** When it first ran. */
  startMs?: number;
  scores: Score[];
  sum?: Float32Array;
};

/** A step that was launched, or could not be. */
type UnderWay = {
  batch: Batch;
  launchedMs: number;
  /** With `debug`. */
  rows?: RowReport[] | undefined;
  prepared?: Prepared;
  launched?: Launched;
  error?: unknown;
};

/** What a step came to: with an error, all who took part have ended. */
type Computed = {
  outcomes: Outcome[];
  /** Of those that asked how likely their tokens are. */
  scores?: ReadonlyMap<Sequence, Sampled>;
  error?: string;
};

/** Of a step: few enough to keep the streams of others smooth. */
const FEW_TOKENS = 512;

export type ModelEngineParts = {
  name: string;
  pool: BlockPool;
  runner: StepRunner;
  vocabulary: number;
  maxLength: number;
  /** As the scheduler has it. */
  lookback: number;
  options: EngineOptions;
  /** Who follows grammars, once there is somebody. */
  matchers?: () => Pick<Matchers, "open" | "isCompiling"> | undefined;
  nowMs?: () => number;
};

export class ModelEngine {
  readonly name: string;
  readonly scheduler: Scheduler;
  readonly #parts: ModelEngineParts;
  readonly #now: () => number;
  readonly #answers = new Map<Sequence, Answer>();
  readonly #sequences = new Map<number, Sequence[]>();
  #steps = 0;
  #promptTokens = 0;
  #cachedTokens = 0;
  #generatedTokens = 0;
  #last: StepReport | undefined;
  readonly #underWay: UnderWay[] = [];
  #landedMs = 0;
  /** What `readLoad` reads. */
  readonly load = new SharedArrayBuffer(8);
  readonly #load = new Int32Array(this.load);

  constructor(parts: ModelEngineParts) {
    const { pool, options, maxLength } = parts;
    this.name = parts.name;
    this.#parts = parts;
    this.#now = parts.nowMs ?? (() => performance.now());
    this.scheduler = new Scheduler({
      pool,
      maxBatch: options.maxBatch,
      tokenBudget: Math.max(options.tokenBudget ?? FEW_TOKENS, options.maxBatch),
      lookback: parts.lookback,
      maxLength,
      maxWaiting: options.maxWaiting,
      maxWaitingTokens: options.maxWaitingTokens,
      // One block each for a part of those who run.
      watermark: Math.min(Math.ceil(pool.count / 100), options.maxBatch),
      maxPreemptions: 8,
    });
  }

  submit(id: number, request: EngineRequest): Refusal | undefined {
    const { vocabulary, name, options } = this.#parts;
    // An id past the vocabulary would be read from beyond the embedding's memory, or written to beyond
    // that of the logits.
    const unknown = (token: number) =>
      !(Number.isInteger(token) && token >= 0 && token < vocabulary);
    const biased = request.sampling.logitBias?.keys() ?? [];
    if (request.prompt.length === 0 || request.prompt.some(unknown) || [...biased].some(unknown)) {
      return "bad_token";
    }
    const arrivalMs = this.#now();
    const { sampling, grammar, n = 1 } = request;
    const matchers = this.#parts.matchers?.();
    const seed = sampling.seed ?? randomSeed();
    const reading = readingOf(request);
    // What is read of every token of a prompt must be computed.
    const whole = reading?.kind === "scores" || (reading && reading.pooling === "mean");
    const accepted = this.scheduler.submit(
      Array.from({ length: n }, () => ({
        id,
        prompt: request.prompt,
        maxTokens: request.maxTokens,
        minTokens: request.minTokens ?? 0,
        priority: request.priority ?? "NORMAL",
        arrivalMs,
        stopTokens: new Set(request.stopTokens),
        rootKey: rootKey(name, request.salt ?? ""),
        fresh: whole || !options.prefixCaching,
      })),
    );
    if (typeof accepted === "string") return accepted;
    this.#sequences.set(id, accepted);
    accepted.forEach((sequence, index) => {
      const matcher = grammar && matchers?.open(grammar);
      this.#answers.set(sequence, {
        id,
        index,
        name: request.name,
        row: sampleRow(sequence, { ...sampling, seed: seed + index }, matcher),
        matcher,
        // The others begin where the first one's prompt ends.
        reading: index === 0 ? reading : undefined,
        scores: [],
      });
    });
    this.#countLoad();
    return undefined;
  }

  /** Ends a request, or one of its answers. */
  abort(id: number, index?: number): StepEvents {
    const sequences = this.#sequences.get(id) ?? [];
    const events = new StepEvents(0);
    sequences.forEach((sequence, i) => {
      if ((index !== undefined && i !== index) || sequence.state === "finished") return;
      this.scheduler.abort(sequence);
      this.#tell({ sequence, token: undefined, finished: "abort" }, undefined, events);
    });
    this.#countLoad();
    return events;
  }

  /** Throws unless every block is accounted for. */
  check(): void {
    this.scheduler.check(this.#underWay.map(({ batch }) => batch));
  }

  has(id: number): boolean {
    return this.#sequences.has(id);
  }

  /**
   * What a step has brought, if there is anything to compute. On a device that works by itself the next
   * step is launched before this one is read, so that it never waits for us.
   */
  step(): StepResult | undefined {
    while (this.#underWay.length < this.#parts.runner.depth) {
      // All before it were read, so that it can be drawn.
      this.#underWay[0]?.launched?.draw();
      // Nothing follows on a step that could not be launched.
      if (this.#underWay.some(({ launched }) => !launched)) break;
      const batch = this.#next();
      if (!batch) break;
      this.#underWay.push(this.#launch(batch));
    }
    const first = this.#underWay.shift();
    if (!first) return undefined;
    const { outcomes, scores, error } = this.#land(first);
    const events = new StepEvents(outcomes.length);
    for (const outcome of outcomes) this.#tell(outcome, scores?.get(outcome.sequence), events);
    this.#countLoad();
    const now = this.#now();
    const ms = now - Math.max(first.launchedMs, this.#landedMs);
    this.#landedMs = now;
    this.#last = this.#report(first, ms, error);
    return { events, report: this.#last };
  }

  /** While a grammar is compiled, nobody waits for those whose mask is not there yet. */
  #next(): Batch | undefined {
    const isCompiling = this.#parts.matchers?.()?.isCompiling;
    return this.scheduler.next(isCompiling ? this.#isLate : undefined);
  }

  readonly #isLate = (sequence: Sequence): boolean =>
    this.#answers.get(sequence)?.matcher?.isLate === true;

  #launch(batch: Batch): UnderWay {
    const launchedMs = this.#now();
    // Now, for who ends before it has landed is forgotten.
    const rows = this.#parts.options.debug ? this.#rowReports(batch) : undefined;
    try {
      const prepared = prepare(batch, (sequence) => {
        const answer = this.#answers.get(sequence)!;
        answer.startMs ??= launchedMs;
        return answer;
      });
      const launched = this.#parts.runner.launch(prepared.inputs);
      return { batch, launchedMs, rows, prepared, launched };
    } catch (error) {
      return { batch, launchedMs, rows, error };
    }
  }

  #land({ batch, prepared, launched, error }: UnderWay): Computed {
    try {
      if (!prepared || !launched) throw error;
      launched.draw();
      const { sampled: drawn, scored, sums } = prepared.restore(launched.read());
      for (const { sequence, start, scores } of scored) {
        scores.forEach((score, i) => {
          const answer = this.#answers.get(sequence);
          if (answer) answer.scores[start + i - 1] = score;
        });
      }
      for (const part of sums) this.#addUp(part);
      const tokens = drawn.map(({ token }) => token);
      return { outcomes: this.scheduler.commit(batch, tokens), scores: scoresOf(batch, drawn) };
    } catch (failure) {
      return { outcomes: this.scheduler.fail(batch), error: String(failure) };
    }
  }

  #addUp({ sequence, start, sum }: PromptSum): void {
    const answer = this.#answers.get(sequence);
    if (!answer) return;
    // A sequence that was preempted begins anew.
    const before = start > 0 ? answer.sum : undefined;
    answer.sum = before ? sum.map((value, i) => value + before[i]!) : sum;
  }

  #tell(
    { sequence, token, finished }: Outcome,
    scored: Sampled | undefined,
    events: StepEvents,
  ): void {
    const answer = this.#answers.get(sequence)!;
    const { id, index } = answer;
    const cachedTokens = sequence.cachedTokens ?? 0;
    const first = sequence.generated === 1 && token !== undefined;
    if (token !== undefined) this.#generatedTokens += 1;
    if (first && index === 0) {
      this.#promptTokens += sequence.promptLength;
      this.#cachedTokens += cachedTokens;
    }
    if (finished) this.#forget(sequence, id);
    else if (token !== undefined) answer.matcher?.accept(token);
    if (token !== undefined && !first && !finished && !scored) {
      events.addToken(id, index, token, cachedTokens);
      return;
    }
    const { logprob, top } = scored ?? {};
    const event = { index, token, logprob, top, finished, cachedTokens };
    events.add(id, first ? { ...event, ...this.#firstReadings(sequence, answer) } : event);
  }

  #firstReadings(sequence: Sequence, { startMs, reading, scores, sum }: Answer) {
    const vector =
      reading?.kind === "vector" && reading.pooling === "mean"
        ? sum?.map((value) => value / sequence.promptLength)
        : sum;
    return {
      queueMs: (startMs ?? this.#now()) - sequence.arrivalMs,
      promptLogprobs: reading?.kind === "scores" ? scores : undefined,
      vector,
    };
  }

  #forget(sequence: Sequence, id: number): void {
    this.#answers.get(sequence)?.matcher?.close();
    this.#answers.delete(sequence);
    const sequences = this.#sequences.get(id) ?? [];
    if (sequences.every(({ state }) => state === "finished")) this.#sequences.delete(id);
  }

  #countLoad(): void {
    const running = this.scheduler.running.length;
    this.#load[0] = running;
    this.#load[1] = this.#answers.size - running;
  }

  #report({ batch, rows: reports }: UnderWay, ms: number, error: string | undefined): StepReport {
    const { rows, preempted } = batch;
    let [tokens, decodeTokens] = [0, 0];
    for (const { start, count, sequence } of rows) {
      tokens += count;
      if (start >= sequence.promptLength) decodeTokens += 1;
    }
    return {
      model: this.name,
      step: this.#steps++,
      ms,
      rows: rows.length,
      prefillTokens: tokens - decodeTokens,
      decodeTokens,
      preempted,
      running: this.scheduler.running.length,
      waiting: this.scheduler.waiting.length,
      blocks: readGauges(this.#parts.pool.gauges),
      error,
      batch: reports,
      requests: this.#parts.options.debug ? this.#requestReports() : undefined,
    };
  }

  stats(): Omit<ModelStats, "liveArrays" | "activeBytes"> {
    return {
      model: this.name,
      steps: this.#steps,
      forwards: this.#parts.runner.forwards,
      preemptions: this.scheduler.preemptions,
      promptTokens: this.#promptTokens,
      cachedTokens: this.#cachedTokens,
      generatedTokens: this.#generatedTokens,
      last: this.#last,
      requests: this.#requestReports(),
    };
  }

  #rowReports({ rows }: Batch): RowReport[] {
    return rows.map(({ sequence, count }) => {
      const { id, index, name } = this.#answers.get(sequence)!;
      return { id, index, name, tokens: count };
    });
  }

  #requestReports(): RequestReport[] {
    const sequences = [...this.scheduler.running, ...this.scheduler.waiting];
    return sequences.map((sequence) => this.#requestReport(sequence));
  }

  #requestReport(sequence: Sequence): RequestReport {
    const { id, index, name } = this.#answers.get(sequence)!;
    const now = this.#now();
    return {
      id,
      index,
      name,
      state: sequence.state === "running" ? "running" : "waiting",
      priority: sequence.priority,
      ageMs: now - sequence.arrivalMs,
      standing: standing(sequence, now),
      promptTokens: sequence.promptLength,
      generated: sequence.generated,
      cachedTokens: sequence.cachedTokens ?? 0,
      preemptions: sequence.preemptions,
      blocks: sequence.table.length,
    };
  }
}

function readingOf({ promptLogprobs, pooling }: EngineRequest): PromptReading | undefined {
  if (promptLogprobs !== undefined) return { kind: "scores", top: promptLogprobs };
  return pooling && { kind: "vector", pooling };
}

/** Asked only while no later step than the one that draws has been launched for the sequence. */
function sampleRow(
  sequence: Sequence,
  sampling: Sampling,
  matcher: Matcher | undefined,
): SampleRow {
  return {
    sampling,
    promptLength: sequence.promptLength,
    tokens: () => sequence.tokens(),
    get index() {
      return sequence.generated + sequence.unread - 1;
    },
    allowed: matcher && (() => matcher.allowed()),
  };
}

function scoresOf({ rows }: Batch, drawn: readonly Sampled[]): Map<Sequence, Sampled> {
  const scores = new Map<Sequence, Sampled>();
  let at = 0;
  for (const { samples } of rows) {
    for (const sample of samples) {
      const own = drawn[at++]!;
      if (own.top) scores.set(sample, own);
    }
  }
  return scores;
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
