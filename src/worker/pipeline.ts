// The steps in flight of one model. On an asynchronous device the next step is launched before the last one is
// read, so that the device never waits for the host.
import type { RowReport, Traffic } from "../engine/protocol.ts";
import type { Lookback, Sampled } from "../model/run/sampler.ts";
import type { Launched, StepInputs } from "../model/run/step.ts";
import type { Batch, Drawn, Outcome, Scheduler } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";
import type { Answer, Answers } from "./answers.ts";
import { type Prepared, prepare } from "./inputs.ts";

/** Computes steps; implemented by the model's runner, by ranks, and by fakes in tests. */
export type StepRunner = {
  readonly forwards: number;
  /** Maximum steps in flight. */
  readonly depth: number;
  /** Number of pipeline stages, if any. A step then cannot use tokens that another step in flight will draw. */
  readonly stages?: number | undefined;
  /** Launches a step. Calls `landOthers` to read earlier steps if they finish before the launch does. */
  launch(inputs: StepInputs, landOthers: () => void): Launched;
  /** Whether a step can be launched now. Default: always. */
  isReady?(): boolean;
  /** Collectives between ranks, if the model runs on ranks. */
  readonly traffic?: Traffic;
  /** Returns the reason if all computed state was lost, once per loss; otherwise undefined. */
  takeLoss?(): string | undefined;
  /** Whether a rank refuses the model, so that requests would wait forever. */
  readonly isRefused?: boolean;
};

/** A launched step, or one that failed to launch. */
type InFlight = {
  batch: Batch;
  launchedMs: number;
  reports: RowReport[] | undefined;
  prepared?: Prepared;
  launched?: Launched;
  isDrawn?: true;
  error?: unknown;
  /** Answers not drawn because their token masks were late. */
  late: Answer[];
};

/** A step that has landed. If it has an error, all its sequences have ended. */
export type Landed = {
  batch: Batch;
  /** Time since the launch, or since the previous step landed if that was later. */
  ms: number;
  reports: RowReport[] | undefined;
  outcomes: Outcome[];
  /** Samples of sequences that asked for log-probabilities or logits. */
  scores?: ReadonlyMap<Sequence, Sampled>;
  error?: string;
};

export type PipelineParts = {
  runner: StepRunner;
  scheduler: Scheduler;
  answers: Answers;
  nowMs: () => number;
  /** Reports a batch's rows; called at launch, before any of the rows' answers has ended. */
  reportRows: (batch: Batch) => RowReport[] | undefined;
  onLanded: (landed: Landed) => void;
};

/** How long to wait for a token mask once the device has probably finished the step. */
const MASK_GRACE_MS = 1;

export class Pipeline {
  readonly #parts: PipelineParts;
  readonly #inFlight: InFlight[] = [];
  #landedMs = 0;
  /** Duration of the last step. */
  #stepMs = 0;

  constructor(parts: PipelineParts) {
    this.#parts = parts;
  }

  get batches(): readonly Batch[] {
    return this.#inFlight.map(({ batch }) => batch);
  }

  /** Launches steps up to the runner's depth and lands the oldest. Returns false if there is nothing to compute. */
  step(): boolean {
    const { runner, scheduler, answers, onLanded } = this.#parts;
    while (this.#inFlight.length < runner.depth && (runner.isReady?.() ?? true)) {
      // Draws the oldest step, because the next step may take its tokens. This is possible, because all steps before
      // the oldest have been read.
      if (this.#inFlight[0] && !runner.stages) this.#draw(this.#inFlight[0]);
      // Launches nothing after a step that failed to launch or draw: it has no tokens for the next step.
      if (this.#inFlight.some(({ error }) => error !== undefined)) break;
      const batch = scheduler.next(answers.isStalled);
      if (!batch) break;
      const before = this.#inFlight.length;
      const launched = this.#launch(batch);
      const hasLanded = this.#inFlight.length < before;
      this.#inFlight.push(launched);
      // Return after each landed step, so that messages and other models are served in between.
      if (hasLanded) return true;
    }
    const first = this.#inFlight.shift();
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

  #launch(batch: Batch): InFlight {
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
        for (const step of this.#inFlight.splice(0)) onLanded(this.#land(step));
      });
      // Hash block keys while the device computes: hashing after landing would delay the step's tokens.
      for (const { sequence, start, count } of batch.rows) sequence.hash(start + count);
      return { batch, launchedMs, reports, prepared, launched, late: [] };
    } catch (error) {
      return { batch, launchedMs, reports, error, late: [] };
    }
  }

  /** Samples a step. Waits for token masks until the step's expected end, and at least MASK_GRACE_MS. */
  #draw(step: InFlight): void {
    const { answers, nowMs } = this.#parts;
    const { launchedMs, prepared, launched, isDrawn } = step;
    if (!prepared || !launched || isDrawn) return;
    step.isDrawn = true;
    const endMs = Math.max(launchedMs, this.#landedMs) + this.#stepMs;
    const deadlineMs = Math.max(endMs, nowMs() + MASK_GRACE_MS);
    try {
      const lookbacks = prepared.lookingBack.map((sequence): Lookback => {
        const answer = answers.get(sequence);
        // The request was aborted since the launch: the sample's token will be dropped.
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

  #land(step: InFlight): Landed {
    const { nowMs } = this.#parts;
    const { batch, launchedMs, reports } = step;
    const computed = this.#compute(step);
    const now = nowMs();
    const ms = now - Math.max(launchedMs, this.#landedMs);
    this.#landedMs = now;
    this.#stepMs = ms;
    return { batch, reports, ms, ...computed };
  }

  #compute(step: InFlight): Pick<Landed, "outcomes" | "scores" | "error"> {
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
