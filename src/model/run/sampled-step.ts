// Follows a launched step on the rank that samples: draws tokens for its rows, hands them on to the next step, and
// scores prompts when the step is read. Owns the arrays that it will read, and frees them after that.
import type { Compute, HostTransfer } from "../../device/device.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import { astype } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { Model } from "../contract/model.ts";
import { scorePrompt } from "./logprobs.ts";
import { type Draw, draw, inOrder, type Lookback, type Sampled } from "./sampler.ts";
import type { Forward, Launched, StepInputs, StepOutputs } from "./step.ts";
import type { StepOrder } from "./step-order.ts";

type Context = { device: Compute & HostTransfer; model: Model; order: StepOrder };

export class SampledStep implements Launched {
  readonly #context: Context;
  readonly #inputs: StepInputs;
  readonly #forward: Forward;
  readonly #owned = new Set<MlxArray>();
  readonly #draws: (Draw & { members: readonly number[] })[] = [];
  /** Arrays that are waited for, though not read, so that steps do not pile up on the device. */
  #unread: readonly MlxArray[] = [];
  #isDrawn = false;
  #failure: unknown;

  constructor(context: Context, inputs: StepInputs, forward: Forward) {
    this.#context = context;
    this.#inputs = inputs;
    this.#forward = forward;
    const { samples, scores } = inputs;
    const { hidden, added, logits, best } = forward;
    const isLate = samples.some(({ row }) => row.looksBack);
    try {
      // Keeps hidden states for scores, or to wait until keys and values are written if nothing is sampled.
      const kept = hidden && (samples.length === 0 || scores.length > 0) ? this.#own([hidden]) : [];
      if (samples.length === 0) this.#unread = kept;
      // Launches the logits now, so that the device computes them while the host makes token masks.
      if (isLate) this.#own([logits!, best!.indices, best!.highest]);
      const drawn = this.#drawRows([]);
      const rest = [...this.#own(added), ...kept, ...(isLate ? [logits!] : [])];
      this.#begin([...drawn, ...rest, ...(isLate ? [] : this.#handOn())]);
    } catch (error) {
      context.order.release(this.#owned);
      throw error;
    }
  }

  draw(lookbacks: readonly Lookback[]): void {
    if (this.#isDrawn) return;
    using _ = new Scope();
    try {
      this.#begin([...this.#drawRows(lookbacks, true), ...this.#handOn()]);
    } catch (error) {
      this.#isDrawn = true;
      this.#failure = error;
      throw error;
    }
  }

  read(): StepOutputs {
    const { hidden, added, logits } = this.#forward;
    const { samples, scores } = this.#inputs;
    const { device, model, order } = this.#context;
    try {
      // Waits for the step, because the rows' blocks are freed after this.
      if (this.#failure || !this.#isDrawn) evaluate(logits!);
      if (this.#failure) throw this.#failure;
      if (this.#unread.length > 0) evaluate(...this.#unread);
      const sampled = samples.map((): Sampled => ({ token: undefined }));
      for (const { members, read } of this.#draws) {
        read().forEach((each, i) => {
          sampled[members[i]!] = each;
        });
      }
      return {
        sampled,
        scored: scores.map((each) => scorePrompt(device, model, hidden!, each)),
        sums: added.map((each) => Float32Array.from(each.numbers())),
      };
    } finally {
      order.release(this.#owned);
    }
  }

  #own(arrays: readonly MlxArray[]): readonly MlxArray[] {
    for (const each of hold(arrays)) this.#owned.add(each);
    return arrays;
  }

  /** Draws the rows with penalties or grammars (`looksBack`), given their counts and masks, or the other rows. */
  #drawRows(lookbacks: readonly Lookback[], looksBack = false): readonly MlxArray[] {
    const { samples } = this.#inputs;
    const members = [...samples.keys()].filter((i) => !!samples[i]!.row.looksBack === looksBack);
    if (members.length === 0) return [];
    const rows = members.map((i, at) => {
      return lookbacks[at] ? { ...samples[i]!.row, ...lookbacks[at] } : samples[i]!.row;
    });
    const { logits, best } = this.#forward;
    const made = draw(this.#context.device, logits!, rows, members, best!);
    this.#draws.push({ members, ...made });
    return this.#own(made.pending);
  }

  /** Joins the drawn tokens for the next step, which frees them. */
  #handOn(): readonly MlxArray[] {
    const { device, order } = this.#context;
    this.#isDrawn = true;
    if (this.#draws.length === 0 || !order.feeds) return [];
    const all = astype(inOrder(device, this.#draws), "uint32");
    const { next, before } = order.feed(all, this.#inputs.samples.length);
    if (before) this.#owned.add(before);
    return [next];
  }

  #begin(arrays: readonly MlxArray[]): void {
    const { order } = this.#context;
    // On a first pipeline stage, evaluates in `read`: the next step's layers would queue behind the other stages.
    if (order.isStage) this.#unread = [...this.#unread, ...arrays];
    else order.begin(arrays);
  }
}
