// Runs the steps of a model: one forward pass over all rows, and a token for each sampled row. Steps are launched and
// read later, so that they can overlap. Decode steps are traced once per padded batch size, so that on CUDA each is a
// single launch; steps with prompts are traced if the device records those too.
import {
  type Compute,
  type HostTransfer,
  type StepPolicy,
  type Traced,
  untraced,
} from "../../device/device.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import { astype, slice, sum, take, zeros } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { BegunLayers } from "../contract/begun-layers.ts";
import type { Model } from "../contract/model.ts";
import type { DecodeInputs, StateRow, StateStore } from "../state/state-store.ts";
import { scorePrompt } from "./logprobs.ts";
import { SampledStep } from "./sampled-step.ts";
import type { Best, SampleRow } from "./sampler.ts";
import type { Forward, Launched, StepInputs } from "./step.ts";
import { StepOrder } from "./step-order.ts";

export class Runner {
  /** Number of forward passes so far. */
  forwards = 0;
  readonly #device: Compute & StepPolicy & HostTransfer;
  readonly #model: Model;
  readonly #store: StateStore;
  readonly #group: Group | undefined;
  readonly #weightBytes: number;
  /** Traced steps by shape of the step. */
  readonly #traced = new Map<string, Traced>();
  readonly #order: StepOrder;

  /**
   * With `group` (tensor parallelism) the first rank samples, and the others follow its steps. With `isStage` this is
   * the first of several pipeline stages, which waits for the last stage only when a step is read.
   */
  constructor(
    device: Compute & StepPolicy & HostTransfer,
    model: Model,
    store: StateStore,
    group?: Group,
    { isStage = false, weightBytes = 0 }: { isStage?: boolean; weightBytes?: number } = {},
  ) {
    this.#device = device;
    this.#group = group;
    this.#model = model;
    this.#store = store;
    this.#weightBytes = weightBytes;
    this.#order = new StepOrder({ device, store, group }, isStage);
  }

  /** Maximum steps in flight, including the step that is being read. */
  get depth(): number {
    return this.#device.depth;
  }

  /** Launches a step. If earlier steps end before it is launched, it calls `landOthers` to read their results. */
  launch(inputs: StepInputs, landOthers?: () => void): Launched {
    using _ = new Scope();
    this.forwards += 1;
    const forward = isDecode(inputs)
      ? this.#decode(inputs)
      : (this.#prompts(inputs) ?? this.#mixed(inputs, landOthers));
    if (this.#group && this.#group.rank > 0) return this.#follow(inputs, forward);
    const context = { device: this.#device, model: this.#model, order: this.#order };
    return new SampledStep(context, inputs, forward);
  }

  /** Runs a step of every batch size, if the device compiles kernels or records steps. */
  warmUp(
    maxBatch: number,
    maxLength: number,
    onStep: (done: number, total: number) => void = () => {},
  ): void {
    if (!this.#device.compiles) return;
    const steps = this.#warmUpSteps(maxBatch, maxLength);
    for (const [index, rows] of steps.entries()) {
      onStep(index, steps.length);
      const tokens = new Uint32Array(tokensOf(rows));
      const samples = rows.map((_, at) => ({ at, row: greedy }));
      this.launch({ tokens, rows, samples, copies: [], scores: [], sums: [] }).read();
    }
    onStep(steps.length, steps.length);
  }

  #warmUpSteps(maxBatch: number, maxLength: number): (readonly StateRow[])[] {
    const store = this.#store;
    const steps: (readonly StateRow[])[] = [1, maxBatch].map((beside) => [
      ...Array<StateRow>(beside).fill(store.scratchRow(0, 1)),
      store.scratchRow(0, BLOCK_TOKENS),
    ]);
    const { paddedRows } = this.#device;
    const sizes = new Set(Array.from({ length: maxBatch }, (_, i) => paddedRows(i + 1)));
    for (const size of sizes) {
      const tried = new Set<number>();
      for (let length = 1; length <= maxLength; length *= 2) {
        const rows = Array<StateRow>(size).fill(store.scratchRow(length - 1, 1));
        const { parts } = store.decodeInputs(rows).shape;
        if (tried.has(parts)) continue;
        tried.add(parts);
        // Two runs, because the second one records the step.
        steps.push(rows, rows);
      }
    }
    return steps;
  }

  /** Frees the traced steps. Call it after every launched step was read. */
  free(): void {
    this.#order.free();
    for (const each of this.#traced.values()) each.free();
  }

  #mixed(inputs: StepInputs, landOthers: (() => void) | undefined): Forward {
    const { rows, samples, scores, sums } = inputs;
    const { stage, fetch } = this.#device;
    const tokens = this.#order.tokens(inputs, inputs.tokens.length);
    const at = samples.map((sample) => sample.at);
    // Samples the first token if there are no samples, because the step must have an output to wait for.
    const sampled = stage(Int32Array.from(at.length > 0 ? at : [0]));
    // Lets the last layer compute only the sampled tokens, unless scores and sums need all of them.
    const wanted = scores.length + sums.length === 0 ? sampled : undefined;
    using begun = this.#beginsEarly(tokens.size) ? new BegunLayers(landOthers) : undefined;
    const step = this.#store.begin(rows, (queries) => begun?.start(queries));
    const hidden = this.#model.forward(tokens, step, wanted, begun); // (T, D) or (R, D)
    const added = sums.map(({ from, to }) =>
      fetch(astype(sum(slice(hidden, 0, from, to), 0), "float32")),
    );
    if (samples.length === 0) return { hidden, added };
    const { logits, best } = this.#logits(wanted ? hidden : take(hidden, sampled, 0));
    const [indices, highest] = [fetch(best.indices), fetch(best.highest)];
    return { hidden, added, logits, best: { indices, highest } };
  }

  /** Whether layers launch before the step is built. Never with several ranks: others expect no collectives yet. */
  #beginsEarly(tokens: number): boolean {
    if (this.#group || this.#order.isStage) return false;
    return this.#device.beginsEarly?.(tokens, this.#weightBytes) ?? false;
  }

  /** Runs a step with prompts, padded so that few shapes are recorded; undefined if the step cannot be recorded. */
  #prompts(inputs: StepInputs): Forward | undefined {
    const { rows, tokens, copies, samples, scores, sums } = inputs;
    const size = this.#device.paddedTokens?.(tokens.length, this.#weightBytes);
    if (size === undefined || this.#group || this.#order.isStage) return undefined;
    if (copies.length + scores.length + sums.length > 0) return undefined;
    const all = this.#withPadding(rows, size, samples.length);
    const taken = this.#store.promptInputs(all);
    if (!taken) return undefined;
    const { length } = all;
    const { arrays, width } = taken;
    const sampled = new Int32Array(length).fill(earliestToken(all));
    sampled.set(samples.map(({ at }) => at));
    const staged = [sampled, ...arrays].map((each) => this.#device.stage(each));
    const ordered = this.#order.tokens(inputs, size);
    const prompts = this.#tracedOf(
      `prompts ${size} ${length} ${width}`,
      (tokens, [at, ...arrays]) => this.#model.forward(tokens, this.#store.promptStep(arrays), at),
      () => this.#promptRehearsal(size, length, width),
    );
    const given = [ordered, ...staged];
    const isBeside = rows.some(({ count }) => count === 1);
    const made = isBeside ? prompts.callBeside?.(...given) : undefined;
    const [indices, highest, logits] = made ?? prompts.call(...given);
    const best = { indices: indices!, highest: highest! };
    // A step without samples waits for `hidden`. Any output of the step can be waited for.
    return { hidden: best.indices, added: [], logits: logits!, best };
  }

  /** Pads with scratch tokens to `size`, and with empty rows to 8, 32, 128 ... rows, at least one per sample. */
  #withPadding(rows: readonly StateRow[], size: number, samples: number): StateRow[] {
    const all = [...rows];
    for (let left = size - tokensOf(rows); left > 0; left -= BLOCK_TOKENS) {
      all.push(this.#store.scratchRow(0, Math.min(left, BLOCK_TOKENS)));
    }
    const least = Math.max(all.length, samples);
    const padded = 8 * 4 ** Math.max(0, Math.ceil(Math.log2(least / 8) / 2));
    return [...all, ...Array<StateRow>(padded - all.length).fill(this.#store.scratchRow(0, 0))];
  }

  #promptRehearsal(size: number, rows: number, width: number): Integers[] {
    const longest = width * BLOCK_TOKENS;
    const all: StateRow[] = [];
    for (let left = size; left > 0; left -= longest) {
      const count = Math.min(left, longest);
      all.push(this.#store.scratchRow(longest - count, count));
    }
    const empty = Array<StateRow>(rows - all.length).fill(this.#store.scratchRow(0, 0));
    const { arrays } = this.#store.promptInputs([...all, ...empty])!;
    return [new Uint32Array(size), new Int32Array(rows), ...arrays];
  }

  #decode(inputs: StepInputs): Forward {
    const { rows } = inputs;
    const size = this.#device.paddedRows(rows.length);
    const padding = this.#store.scratchRow(0, 1);
    const all = [...rows, ...Array<StateRow>(size - rows.length).fill(padding)];
    const { arrays, shape } = this.#store.decodeInputs(all);
    const decoding = this.#tracedOf(
      `${size} ${shape.width} ${shape.parts}`,
      (tokens, arrays) => this.#model.forward(tokens, this.#store.decodeStep(arrays, shape)),
      () => this.#rehearsal(size, shape),
    );
    const tokens = this.#order.tokens(inputs, size);
    const staged = arrays.map((each) => this.#device.stage(each));
    const [indices, highest, logits] = decoding.call(tokens, ...staged);
    return { added: [], logits: logits!, best: { indices: indices!, highest: highest! } };
  }

  /**
   * Returns a step of this shape, traced once: tokens (T) and integers -> the most likely tokens (R), their logits
   * (R), all logits (R, V). With several ranks each step is built anew: CPU collectives cannot be compiled or
   * recorded for a GPU; recording NCCL's would deadlock, because ranks need different numbers of rehearsals; nothing
   * may be evaluated before other ranks send their part.
   */
  #tracedOf(
    key: string,
    forward: (tokens: MlxArray, integers: readonly MlxArray[]) => MlxArray,
    rehearsal: () => Integers[],
  ): Traced {
    const build = ([tokens, ...integers]: readonly MlxArray[]) => {
      const { best, logits } = this.#logits(forward(tokens!, integers));
      return [best.indices, best.highest, logits];
    };
    if (this.#group || this.#order.isStage) return untraced(build);
    const { stage } = this.#device;
    return this.#traced.getOrInsertComputed(key, () =>
      this.#device.trace(build, () => rehearsal().map((each) => stage(each))),
    );
  }

  /** Makes scratch inputs for a decode step of this shape. */
  #rehearsal(size: number, { width }: DecodeInputs["shape"]): Integers[] {
    const row = this.#store.scratchRow(width * BLOCK_TOKENS - 1, 1);
    return [
      new Uint32Array(size),
      ...this.#store.decodeInputs(Array<StateRow>(size).fill(row)).arrays,
    ];
  }

  #logits(hidden: MlxArray): { logits: MlxArray; best: Best } {
    const logits = this.#model.logits(hidden);
    const { indices, highest } = this.#device.best(logits);
    // Converts now, because a conversion in `read` would be queued after the next step.
    return { logits, best: { indices, highest: astype(highest, "float32") } };
  }

  /** Takes part in a step whose tokens another rank samples. This rank has only a part of the logits. */
  #follow({ samples, scores }: StepInputs, { hidden, added, logits }: Forward): Launched {
    const order = this.#order;
    const kept = hidden && (!logits || scores.length > 0) ? [hidden] : [];
    const owned = hold([...(logits ? [logits] : []), ...kept, ...added]);
    order.begin(owned);
    const { length } = samples;
    if (length > 0) order.feed(zeros([length], "uint32"), length).before?.free();
    return {
      draw() {},
      read: () => {
        try {
          evaluate(...owned);
          for (const each of scores) scorePrompt(this.#device, this.#model, hidden!, each);
          return { sampled: [], scored: [], sums: [] };
        } finally {
          order.release(owned);
        }
      },
    };
  }
}

type Integers = Uint32Array | Int32Array;

/** Whether each row has one token and one sample. Equal counts do not suffice: samples may share a row. */
function isDecode({ rows, copies, samples, scores, sums }: StepInputs): boolean {
  return (
    copies.length + scores.length + sums.length === 0 &&
    samples.length === rows.length &&
    samples.every(({ at }, i) => at === i) &&
    rows.every(({ count }) => count === 1)
  );
}

function tokensOf(rows: readonly StateRow[]): number {
  return rows.reduce((sum, { count }) => sum + count, 0);
}

/** Returns the index of the token with the shortest context: padding samples it, because that is the cheapest. */
function earliestToken(rows: readonly StateRow[]): number {
  let [earliest, least, at] = [0, Infinity, 0];
  for (const { start, count } of rows) {
    if (count > 0 && start < least) [earliest, least] = [at, start];
    at += count;
  }
  return earliest;
}

const greedy: SampleRow = { sampling: { temperature: 0, seed: 0 }, index: 0 };
