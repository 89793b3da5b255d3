// The steps of one model that are under way. On a device that works by itself the next step is launched before
// the last one is read, so that it never waits for the host.
import type { RowReport, Traffic } from "../engine/protocol.ts";
import type { Launched, StepInputs } from "../model/run/runner.ts";
import type { Lookback, Sampled } from "../model/run/sampler.ts";
import type { Batch, Drawn, Outcome, Scheduler } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";
import type { Answer, Answers } from "./answers.ts";
import { type Prepared, prepare } from "./inputs.ts";

/** What computes a step: the model's runner, or a test's. */
export type StepRunner = {
  readonly forwards: number;
  /** Steps under way at most. */
  readonly depth: number;
  /** Parts that a step passes one after the other, where each has its own step: none follows on one that is under way. */
  readonly stages?: number | undefined;
  /** `landOthers`: as the runner has it. */
  launch(inputs: StepInputs, landOthers: () => void): Launched;
  /** Whether a step can be launched now; always unless it says. */
  isReady?(): boolean;
  /** What ranks have sent each other, where there are some. */
  readonly traffic?: Traffic;
  /** Why all that was computed is lost, where it is; once. */
  takeLoss?(): string | undefined;
  /** Whether a rank refuses the model, so that requests would wait without an end. */
  readonly isRefused?: boolean;
};

/** A step that was launched, or could not be. */
type UnderWay = {
  batch: Batch;
  launchedMs: number;
  reports: RowReport[] | undefined;
  prepared?: Prepared;
  launched?: Launched;
  isDrawn?: true;
  error?: unknown;
  /** Answers that it could not draw for. */
  late: Answer[];
};

/** A step that has landed. With an error, all its sequences have ended. */
export type Landed = {
  batch: Batch;
  /** From its launch, or from when the step before it had landed. */
  ms: number;
  reports: RowReport[] | undefined;
  outcomes: Outcome[];
  /** Of sequences that asked for log-probabilities. */
  scores?: ReadonlyMap<Sequence, Sampled>;
  error?: string;
};

export type PipelineParts = {
  runner: StepRunner;
  scheduler: Scheduler;
  answers: Answers;
  nowMs: () => number;
  /** What is told of a batch's rows, before any of their answers has ended. */
  reportRows: (batch: Batch) => RowReport[] | undefined;
  onLanded: (landed: Landed) => void;
};

/** How long a mask may be waited for when the device is likely done with the step. */
const MASK_GRACE_MS = 1;

export class Pipeline {
  readonly #parts: PipelineParts;
  readonly #underWay: UnderWay[] = [];
  #landedMs = 0;
  /** How long the last step took. */
  #stepMs = 0;

  constructor(parts: PipelineParts) {
    this.#parts = parts;
  }

  get batches(): readonly Batch[] {
    return this.#underWay.map(({ batch }) => batch);
  }

  /** Launches as many steps as may be under way, and lands the first of them. False where there is nothing to compute. */
  step(): boolean {
    const { runner, scheduler, answers, onLanded } = this.#parts;
    while (this.#underWay.length < runner.depth && (runner.isReady?.() ?? true)) {
      // All steps before it were read, so that it can be drawn: the next one may go on with what it draws.
      if (this.#underWay[0] && !runner.stages) this.#draw(this.#underWay[0]);
      // Nothing follows on a step that could not be launched or drawn: it has no tokens to go on with.
      if (this.#underWay.some(({ error }) => error !== undefined)) break;
      const batch = scheduler.next(answers.isStalled);
      if (!batch) break;
      const before = this.#underWay.length;
      const launched = this.#launch(batch);
      const hasLanded = this.#underWay.length < before;
      this.#underWay.push(launched);
      // One step at a time: between two of them others are served.
      if (hasLanded) return true;
    }
    const first = this.#underWay.shift();
    const loss = first ? undefined : runner.takeLoss?.();
    if (!first && loss === undefined) return false;
    onLanded(first ? this.#land(first) : this.#lose(loss!));
    return true;
  }

  #lose(error: string): Landed {
    const { runner, scheduler } = this.#parts;
    const batch = { step: 0, rows: [], copies: [], preempted: 0, prompt: { plain: 0, scored: 0 } };
    return {
      batch,
      ms: 0,
      reports: undefined,
      outcomes: [...scheduler.failRunning(), ...(runner.isRefused ? scheduler.failWaiting() : [])],
      error,
    };
  }

  #launch(batch: Batch): UnderWay {
    const { runner, answers, nowMs, reportRows, onLanded } = this.#parts;
    const launchedMs = nowMs();
    const reports = reportRows(batch);
    try {
      const prepared = prepare(batch, (sequence) => {
        const answer = answers.get(sequence)!;
        answer.startMs ??= launchedMs;
        return answer;
      });
      const launched = runner.launch(prepared.inputs, () => {
        for (const step of this.#underWay.splice(0)) onLanded(this.#land(step));
      });
      // While the device computes: when the step has landed, what it drew would wait for them.
      for (const { sequence, start, count } of batch.rows) sequence.hash(start + count);
      return { batch, launchedMs, reports, prepared, launched, late: [] };
    } catch (error) {
      return { batch, launchedMs, reports, error, late: [] };
    }
  }

  /** A mask is waited for while the device computes the step, and hardly longer: others would wait too. */
  #draw(step: UnderWay): void {
    const { answers, nowMs } = this.#parts;
    const { launchedMs, prepared, launched, isDrawn } = step;
    if (!prepared || !launched || isDrawn) return;
    step.isDrawn = true;
    const endMs = Math.max(launchedMs, this.#landedMs) + this.#stepMs;
    const deadlineMs = Math.max(endMs, nowMs() + MASK_GRACE_MS);
    try {
      const lookbacks = prepared.lookingBack.map((sequence): Lookback => {
        const answer = answers.get(sequence);
        // It was aborted since: whatever is drawn for it is dropped.
        if (!answer) return { mask: "late" };
        const lookback = answer.lookBack!(deadlineMs);
        if (lookback.mask === "late") {
          answer.missedMask = true;
          step.late.push(answer);
        }
        return lookback;
      });
      launched.draw(lookbacks);
    } catch (error) {
      step.error = error;
    }
  }

  #land(step: UnderWay): Landed {
    const { nowMs } = this.#parts;
    const { batch, launchedMs, reports } = step;
    const computed = this.#compute(step);
    const now = nowMs();
    const ms = now - Math.max(launchedMs, this.#landedMs);
    this.#landedMs = now;
    this.#stepMs = ms;
    return { batch, reports, ms, ...computed };
  }

  #compute(step: UnderWay): Pick<Landed, "outcomes" | "scores" | "error"> {
    const { scheduler, answers } = this.#parts;
    const { batch, prepared, launched } = step;
    try {
      if (!prepared || !launched) throw step.error;
      if (step.error === undefined) this.#draw(step);
      const outputs = launched.read();
      if (step.error !== undefined) throw step.error;
      const { sampled, scored, sums } = prepared.restore(outputs);
      for (const part of scored) answers.addScores(part);
      for (const part of sums) answers.addSum(part);
      for (const answer of step.late) answer.missedMask = false;
      const drawn = sampled.map(({ token, isLate }): Drawn => (isLate ? "late" : token));
      return { outcomes: scheduler.commit(batch, drawn), scores: scoresOf(batch, sampled) };
    } catch (failure) {
      return { outcomes: scheduler.fail(batch), error: String(failure) };
    }
  }
}

function scoresOf({ rows }: Batch, sampled: readonly Sampled[]): Map<Sequence, Sampled> {
  const scores = new Map<Sequence, Sampled>();
  let at = 0;
  for (const { samples } of rows) {
    for (const sample of samples) {
      const own = sampled[at++]!;
      if (own.top || own.logits) scores.set(sample, own);
    }
  }
  return scores;
}
