// The engine of one model: accepts requests, runs their steps, and reports each step's results.
import type {
  BlockMap,
  EngineOptions,
  EngineRequest,
  ModelStats,
  Refusal,
  StepReport,
} from "../engine/protocol.ts";
import { StepEvents } from "../engine/step-events.ts";
import type { Matchers } from "../grammar/matchers.ts";
import type { KvCache } from "../kv/kv-cache.ts";
import { rootKey } from "../kv/prefix.ts";
import { Scheduler } from "../schedule/scheduler.ts";
import { StepSizes } from "../schedule/step-size.ts";
import { Answers, readingOf } from "./answers.ts";
import { type Landed, Pipeline, type StepRunner } from "./pipeline.ts";
import { blockMap, requestReports, rowReports, rowTokens, stepReport } from "./reports.ts";

export type StepResult = { events: StepEvents; report: StepReport };

export type ModelEngineParts = {
  name: string;
  cache: KvCache;
  runner: StepRunner;
  vocabulary: number;
  maxLength: number;
  /** Length above which a sequence needs longrope's long factors, if the model has them. */
  originalLength?: number | undefined;
  /** Context length at which attention costs as much as the rest of the layer. */
  lookback: number;
  /** Default token budget of a step. */
  tokenBudget: number;
  /** Token budget of a step if many streams decode. */
  besideTokens?: number | undefined;
  /** Default target time of a step with prompts. */
  stepMs: number;
  options: EngineOptions;
  /** Returns the matchers of the grammar thread with this index; undefined until the thread is attached. */
  matchers?: (lane: number) => Pick<Matchers, "open"> | undefined;
  /** Whether step reports list the tokens of each row. */
  isWatched?: () => boolean;
  /** Called as soon as a step has landed, possibly in the middle of launching the next one. */
  onStep: (result: StepResult) => void;
  nowMs?: () => number;
};

/** Preemptions after which a sequence is preempted only as a last resort. */
const MAX_PREEMPTIONS = 8;

export class ModelEngine {
  readonly name: string;
  readonly scheduler: Scheduler;
  readonly #parts: ModelEngineParts;
  readonly #now: () => number;
  readonly #answers = new Answers();
  readonly #sizes: StepSizes;
  readonly #pipeline: Pipeline;
  #steps = 0;
  #last: StepReport | undefined;
  /** Numbers of running and waiting answers, which `readLoad` reads from any thread. */
  readonly load = new SharedArrayBuffer(8);
  readonly #load = new Int32Array(this.load);

  constructor(parts: ModelEngineParts) {
    const { cache, runner, options, maxLength, lookback, onStep } = parts;
    this.name = parts.name;
    this.#parts = parts;
    this.#now = parts.nowMs ?? (() => performance.now());
    const tokenBudget = Math.max(options.tokenBudget ?? parts.tokenBudget, options.maxBatch);
    this.#sizes = new StepSizes(tokenBudget, options.stepMs ?? parts.stepMs);
    this.scheduler = new Scheduler({
      cache,
      maxBatch: options.maxBatch,
      tokenBudget,
      besideTokens: parts.besideTokens,
      stages: runner.stages,
      sizes: this.#sizes,
      nowMs: this.#now,
      lookback,
      maxLength,
      originalLength: parts.originalLength,
      maxWaiting: options.maxWaiting,
      maxWaitingTokens: options.maxWaitingTokens,
      // Blocks to keep free for running sequences: 1% of all blocks, but at most one per running sequence.
      watermark: Math.min(Math.ceil(cache.fewestBlocks / 100), options.maxBatch),
      maxPreemptions: MAX_PREEMPTIONS,
    });
    this.#pipeline = new Pipeline({
      runner,
      scheduler: this.scheduler,
      answers: this.#answers,
      nowMs: this.#now,
      reportRows: (batch) => (options.debug ? rowReports(batch, this.#answers) : undefined),
      onLanded: (landed) => onStep(this.#resultOf(landed)),
    });
  }

  submit(id: number, request: EngineRequest): Refusal | undefined {
    const { vocabulary, name, options, matchers, runner } = this.#parts;
    if (runner.isRefused) return "ranks_refuse";
    const { prompt, sampling, n = 1 } = request;
    // An id past the vocabulary would read past the end of the embedding matrix, or write past the end of the logits.
    const isUnknown = (token: number) =>
      !(Number.isInteger(token) && token >= 0 && token < vocabulary);
    const named = [...(sampling.logitBias?.keys() ?? []), ...(sampling.logitsOf ?? [])];
    const isKnown = prompt.length > 0 && areBelow(vocabulary, prompt);
    if (!isKnown || named.some(isUnknown)) return "bad_token";
    const arrivalMs = this.#now();
    const reading = readingOf(request);
    // Scores and means are read from every prompt token, so a cached prefix cannot be skipped.
    const isWhole = reading?.kind === "scores" || reading?.pooling === "mean";
    const sequences = this.scheduler.submit(
      Array.from({ length: n }, () => ({
        id,
        prompt,
        heads: request.heads,
        maxTokens: request.maxTokens,
        minTokens: request.minTokens ?? 0,
        priority: request.priority ?? "NORMAL",
        client: request.client,
        arrivalMs,
        stopTokens: new Set(request.stopTokens),
        rootKey: rootKey(name, request.salt ?? ""),
        fresh: isWhole || !options.prefixCaching,
        scored: reading?.kind === "scores",
        revisable: request.grammar !== undefined,
      })),
    );
    if (typeof sequences === "string") return sequences;
    this.#answers.open(id, request, sequences, matchers?.(request.grammarLane ?? 0));
    this.#countLoad();
    return undefined;
  }

  /** Ends a request, or one of its answers. */
  abort(id: number, index?: number): StepEvents {
    const events = new StepEvents(0);
    this.#answers.sequences(id).forEach((sequence, i) => {
      if ((index !== undefined && i !== index) || sequence.state === "finished") return;
      this.scheduler.abort(sequence);
      const outcome = { sequence, token: undefined, finished: "abort" } as const;
      this.#answers.tell(outcome, undefined, this.#now(), events);
    });
    this.#countLoad();
    return events;
  }

  /** Throws unless the reference counts of all blocks and slots match the sequences that hold them. */
  check(): void {
    this.scheduler.check(this.#pipeline.batches);
  }

  has(id: number): boolean {
    return this.#answers.has(id);
  }

  /** Steps until one step has landed. Returns false if there is nothing to compute. */
  step(): boolean {
    return this.#pipeline.step();
  }

  #resultOf(landed: Landed): StepResult {
    const { batch, ms, error, outcomes, scores } = landed;
    if (error === undefined) this.#sizes.learn(batch.prompt, ms);
    const nowMs = this.#now();
    const events = new StepEvents(outcomes.length);
    for (const outcome of outcomes) {
      this.#answers.tell(outcome, scores?.get(outcome.sequence), nowMs, events);
    }
    this.#countLoad();
    const { name, cache, options, runner, isWatched } = this.#parts;
    this.#last = stepReport(name, this.#steps++, landed, this.scheduler, cache);
    this.#last.traffic = runner.traffic;
    if (options.debug) this.#last.requests = this.#requestReports();
    if (isWatched?.()) this.#last.rowTokens = rowTokens(batch);
    return { events, report: this.#last };
  }

  stats(): Omit<ModelStats, "liveArrays" | "activeBytes"> {
    const { promptTokens, cachedTokens, generatedTokens } = this.#answers;
    return {
      model: this.name,
      steps: this.#steps,
      forwards: this.#parts.runner.forwards,
      traffic: this.#parts.runner.traffic,
      preemptions: this.scheduler.preemptions,
      promptTokens,
      cachedTokens,
      generatedTokens,
      last: this.#last,
      requests: this.#requestReports(),
    };
  }

  blockMap(names: readonly string[]): BlockMap {
    return blockMap(this.name, this.#parts.cache, this.scheduler, this.#answers, names);
  }

  #requestReports() {
    return requestReports(this.scheduler, this.#answers, this.#now());
  }

  #countLoad(): void {
    const running = this.scheduler.running.length;
    this.#load[0] = running;
    this.#load[1] = this.#answers.size - running;
  }
}

/** Whether all tokens are below `end`. A plain loop: callbacks for a long prompt would delay its first token. */
function areBelow(end: number, tokens: Uint32Array): boolean {
  for (let i = 0; i < tokens.length; i++) if (tokens[i]! >= end) return false;
  return true;
}
