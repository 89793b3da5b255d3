// Bookkeeping of one model's requests: their sequences and sampling, the log-probabilities or vectors read from their
// prompts, and the events for the main thread.
import type { EngineEvent, EngineRequest, Sampling } from "../engine/protocol.ts";
import type { StepEvents } from "../engine/step-events.ts";
import type { Matcher, Matchers } from "../grammar/matchers.ts";
import type { Score } from "../model/run/logprobs.ts";
import { isPenalized, type Sampled } from "../model/run/sampler.ts";
import { TokenCounts } from "../model/run/token-counts.ts";
import type { Outcome } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";
import type { PromptReading, PromptScores, PromptSum, Wanted } from "./inputs.ts";

export type Answer = Wanted & {
  readonly id: number;
  /** Index among the request's answers. */
  readonly index: number;
  readonly name: string | undefined;
  readonly matcher: Matcher | undefined;
  /** Time at which the answer's first step was launched. */
  startMs?: number;
  /** Whether a step was drawn before the answer's token mask arrived; the answer is stalled until that step lands. */
  missedMask?: boolean;
  readonly scores: Score[];
  sum?: Float32Array;
};

export class Answers {
  readonly #answers = new Map<Sequence, Answer>();
  readonly #requests = new Map<number, readonly Sequence[]>();
  /** Number of answers with a grammar. */
  #constrained = 0;
  /** Prompt tokens of all requests; a prompt is counted at the first token of its request. */
  promptTokens = 0;
  cachedTokens = 0;
  generatedTokens = 0;

  /** Number of unfinished answers. */
  get size(): number {
    return this.#answers.size;
  }

  has(id: number): boolean {
    return this.#requests.has(id);
  }

  /** Returns the sequences of a request, in the order of its answers. */
  sequences(id: number): readonly Sequence[] {
    return this.#requests.get(id) ?? [];
  }

  get(sequence: Sequence): Answer | undefined {
    return this.#answers.get(sequence);
  }

  open(
    id: number,
    request: EngineRequest,
    sequences: readonly Sequence[],
    matchers: Pick<Matchers, "open"> | undefined,
  ): void {
    const { sampling, grammar, name } = request;
    const seed = sampling.seed ?? randomSeed();
    const reading = readingOf(request);
    this.#requests.set(id, sequences);
    sequences.forEach((sequence, index) => {
      const matcher = grammar && matchers?.open(grammar);
      if (matcher) this.#constrained += 1;
      this.#answers.set(sequence, {
        id,
        index,
        name,
        sampling: { ...sampling, seed: seed + index },
        lookBack: lookBackOf(sequence, sampling, matcher),
        matcher,
        // Only the first answer prefills the prompt; the others fork from it.
        reading: index === 0 ? reading : undefined,
        scores: [],
      });
    });
  }

  /** Predicate: whether a sequence or a fork of it waits for a token mask. Undefined if no answer has a grammar. */
  get isStalled(): ((sequence: Sequence) => boolean) | undefined {
    if (this.#constrained === 0) return undefined;
    return (sequence) =>
      this.#isStalled(sequence) || sequence.forks.some((fork) => this.#isStalled(fork));
  }

  #isStalled(sequence: Sequence): boolean {
    const answer = this.#answers.get(sequence);
    if (!answer?.matcher) return false;
    return answer.missedMask === true || answer.matcher.isLate;
  }

  addScores({ sequence, start, scores }: PromptScores): void {
    const answer = this.#answers.get(sequence);
    if (answer) for (const [i, score] of scores.entries()) answer.scores[start + i - 1] = score;
  }

  addSum({ sequence, start, sum }: PromptSum): void {
    const answer = this.#answers.get(sequence);
    if (!answer) return;
    // A preempted sequence computes its prompt anew, so its earlier sum is dropped.
    const before = start > 0 ? answer.sum : undefined;
    answer.sum = before ? sum.map((value, i) => value + before[i]!) : sum;
  }

  /** Adds the event of an outcome, and closes the answer if it has finished. */
  tell(
    { sequence, token, finished }: Outcome,
    scored: Sampled | undefined,
    nowMs: number,
    events: StepEvents,
  ): void {
    const answer = this.#answers.get(sequence)!;
    const { id, index, matcher } = answer;
    const cachedTokens = sequence.cachedTokens ?? 0;
    const isFirst = sequence.generated === 1 && token !== undefined;
    if (token !== undefined) this.generatedTokens += 1;
    if (isFirst && index === 0) {
      this.promptTokens += sequence.promptLength;
      this.cachedTokens += cachedTokens;
    }
    const isDeadEnd = finished === "error" && matcher?.isAtDeadEnd;
    if (finished) this.#close(sequence, answer);
    else if (token !== undefined) matcher?.accept(token);
    if (token !== undefined && !isFirst && !finished && !scored) {
      events.addToken(id, index, token, cachedTokens);
      return;
    }
    const { logprob, top, logits } = scored ?? {};
    const reason = isDeadEnd ? "dead_end" : finished;
    const event: EngineEvent = {
      index,
      token,
      logprob,
      top,
      logits,
      finished: reason,
      cachedTokens,
    };
    const readings = isFirst ? firstReadings(sequence, answer, nowMs) : undefined;
    events.add(id, { ...event, ...readings });
  }

  #close(sequence: Sequence, { id, matcher }: Answer): void {
    if (matcher) this.#constrained -= 1;
    matcher?.close();
    this.#answers.delete(sequence);
    const isOver = this.sequences(id).every(({ state }) => state === "finished");
    if (isOver) this.#requests.delete(id);
  }
}

function firstReadings(
  sequence: Sequence,
  { startMs, reading, scores, sum }: Answer,
  nowMs: number,
) {
  const isMean = reading?.kind === "vector" && reading.pooling === "mean";
  return {
    queueMs: (startMs ?? nowMs) - sequence.arrivalMs,
    miss: sequence.miss,
    promptLogprobs: reading?.kind === "scores" ? scores : undefined,
    vector: isMean ? sum?.map((value) => value / sequence.promptLength) : sum,
  };
}

export function readingOf({ promptLogprobs, pooling }: EngineRequest): PromptReading | undefined {
  if (promptLogprobs !== undefined) return { kind: "scores", top: promptLogprobs };
  return pooling && { kind: "vector", pooling };
}

/** Returns a function that reads the next sample's token counts (for penalties) and mask; undefined without both. */
function lookBackOf(
  sequence: Sequence,
  sampling: Sampling,
  matcher: Matcher | undefined,
): Wanted["lookBack"] {
  const counts = isPenalized(sampling) ? new TokenCounts(sequence.promptLength) : undefined;
  if (!counts && !matcher) return undefined;
  return (deadlineMs) => {
    counts?.update(sequence.tokens());
    return {
      counts: counts && { tokens: counts.tokens, outputCounts: counts.outputCounts },
      mask: matcher && (matcher.mask(deadlineMs) ?? "late"),
    };
  };
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
