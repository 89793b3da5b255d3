// Runs the steps of a model: one forward pass over all rows, and a token for each row that is sampled. A step
// is launched and read later; where the device lets steps overlap, the tokens that one draws go on to the
// next without passing through the host. Steps of decoding rows alone are traced, once for each of a few
// batch sizes, so that on CUDA they are a single launch; steps with prompts where the device records those too.
import { type Device, type Traced, untraced } from "../../device/device.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import type { BlockCopy } from "../../kv/kv-cache.ts";
import { asyncEvaluate, evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import { astype, less, maximum, slice, sum, take, where, zeros } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { BegunLayers } from "../contract/begun-layers.ts";
import type { Model } from "../contract/model.ts";
import type { DecodeInputs, StateRow, StateStore } from "../state/state-store.ts";
import { type Score, scorePrompt } from "./logprobs.ts";
import {
  type Best,
  type Draw,
  draw,
  inOrder,
  type Lookback,
  type Sampled,
  type SampleRow,
} from "./sampler.ts";

/** All that a step needs, as plain data: it could come from another process. */
export type StepInputs = {
  /** The tokens of all rows, one row after the other. */
  tokens: Uint32Array;
  /** Where a token is not known yet: which of the samples of the step before it is; -1 where it is known. */
  fed?: Int32Array | undefined;
  rows: readonly StateRow[];
  copies: readonly BlockCopy[];
  /** Which of the tokens are sampled, and how. */
  samples: readonly { at: number; row: SampleRow }[];
  /** Where it is asked how likely these tokens were, each after the token at `at` and following. */
  scores: readonly { at: number; next: Uint32Array; top: number }[];
  /** Spans of tokens whose hidden states are added up. */
  sums: readonly { from: number; to: number }[];
};

/** In the order of the inputs. */
export type StepOutputs = { sampled: Sampled[]; scored: Score[][]; sums: Float32Array[] };

/** A step under way. */
export type Launched = {
  /**
   * Draws for the rows that look back, with what each looks back at, in their order. Once: after the step before
   * was read, and before the next one is launched. Where it throws, so will `read`.
   */
  draw(lookbacks: readonly Lookback[]): void;
  /** Waits for it. Once, in the order of the launches. Rows that look back have no token unless they were drawn. */
  read(): StepOutputs;
};

export class Runner {
  /** How many forward passes there were. */
  forwards = 0;
  readonly #device: Device;
  readonly #model: Model;
  readonly #store: StateStore;
  readonly #group: Group | undefined;
  readonly #isStage: boolean;
  readonly #weightBytes: number;
  /** Steps by their shapes. */
  readonly #traced = new Map<string, Traced>();
  /** What the last step draws. */
  #drawn: MlxArray | undefined;
  /** Something that the last step makes, until that is read: what comes next goes behind it. */
  #latest: MlxArray | undefined;

  /**
   * Of a model that is divided among the ranks of a group: the first rank draws, and the others follow its steps. Where
   * it is the first of several stages, what the last stage makes of a step is not waited for before the step is read.
   */
  constructor(
    device: Device,
    model: Model,
    store: StateStore,
    group?: Group,
    { isStage = false, weightBytes = 0 }: { isStage?: boolean; weightBytes?: number } = {},
  ) {
    this.#device = device;
    this.#group = group;
    this.#model = model;
    this.#store = store;
    this.#isStage = isStage;
    this.#weightBytes = weightBytes;
  }

  /** Steps under way at most, the one that is read among them. */
  get depth(): number {
    return this.#device.depth;
  }

  /** Whether a step may be launched before the one before it is read, and so go on with tokens that nobody knows yet. */
  get #overlaps(): boolean {
    return this.depth > 1 || this.#group !== undefined;
  }

  /** `landOthers` reads the steps before: it is called where the launch takes so long that they come to their end. */
  launch(inputs: StepInputs, landOthers?: () => void): Launched {
    using _ = new Scope();
    this.forwards += 1;
    const { rows, copies, samples, scores, sums } = inputs;
    const isDecode =
      copies.length + scores.length + sums.length === 0 &&
      samples.length === rows.length &&
      rows.every(({ count }) => count === 1);
    const forward = isDecode
      ? this.#decode(inputs)
      : (this.#prompts(inputs) ?? this.#mixed(inputs, landOthers));
    return this.#group && this.#group.rank > 0
      ? this.#follow(inputs, forward)
      : this.#start(inputs, forward);
  }

  /** Runs every batch size once, where that compiles something. */
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

  /** The rows of each. */
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
        // A step is recorded the second time.
        steps.push(rows, rows);
      }
    }
    return steps;
  }

  /** After everything that was launched has been read. */
  free(): void {
    this.#drawn?.free();
    for (const each of this.#traced.values()) each.free();
  }

  #mixed(inputs: StepInputs, landOthers: (() => void) | undefined): Forward {
    const { rows, samples, scores, sums } = inputs;
    const { stage, fetch } = this.#device;
    const tokens = this.#ordered(this.#tokens(inputs, inputs.tokens.length), inputs);
    const at = samples.map((sample) => sample.at);
    // Something must be waited for.
    const sampled = stage(Int32Array.from(at.length > 0 ? at : [0]));
    // Where nothing is asked of the other tokens, the last layer has less to compute.
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

  /** Of ranks none begins with what another does not expect yet. */
  #beginsEarly(tokens: number): boolean {
    if (this.#group || this.#isStage) return false;
    return this.#device.beginsEarly?.(tokens, this.#weightBytes) ?? false;
  }

  /** Padded, where the device records such steps: there are few shapes of them then. */
  #prompts(inputs: StepInputs): Forward | undefined {
    const { rows, tokens, copies, samples, scores, sums } = inputs;
    const size = this.#device.paddedTokens?.(tokens.length, this.#weightBytes);
    if (size === undefined || this.#group || this.#isStage) return undefined;
    if (copies.length + scores.length + sums.length > 0) return undefined;
    const all = this.#withPadding(rows, size);
    const taken = this.#store.promptInputs(all);
    if (!taken) return undefined;
    const sampled = new Int32Array(all.length).fill(earliestToken(all));
    sampled.set(samples.map(({ at }) => at));
    const staged = [sampled, ...taken.arrays].map((each) => this.#device.stage(each));
    const ordered = this.#ordered(this.#tokens(inputs, size), inputs);
    const prompts = this.#promptsOf(size, all.length, taken.width);
    const given = [ordered, ...staged];
    const isBeside = rows.some(({ count }) => count === 1);
    const made = isBeside ? prompts.callBeside?.(...given) : undefined;
    const [indices, highest, logits] = made ?? prompts.call(...given);
    const best = { indices: indices!, highest: highest! };
    // Where nothing is sampled they are all that can be waited for.
    return { hidden: best.indices, added: [], logits: logits!, best };
  }

  /** Behind the rows nobody's tokens until there are so many, and rows without tokens until there is a usual number. */
  #withPadding(rows: readonly StateRow[], size: number): StateRow[] {
    const all = [...rows];
    for (let left = size - tokensOf(rows); left > 0; left -= BLOCK_TOKENS) {
      all.push(this.#store.scratchRow(0, Math.min(left, BLOCK_TOKENS)));
    }
    const usual = 8 * 4 ** Math.max(0, Math.ceil(Math.log2(all.length / 8) / 2));
    return [...all, ...Array<StateRow>(usual - all.length).fill(this.#store.scratchRow(0, 0))];
  }

  /** tokens (T), which of them are sampled (R), arrays of `promptInputs` -> as of decoding */
  #promptsOf(size: number, rows: number, width: number): Traced {
    return this.#tracedOf(
      `prompts ${size} ${rows} ${width}`,
      ([tokens, sampled, ...arrays]) => {
        const hidden = this.#model.forward(tokens!, this.#store.promptStep(arrays), sampled!);
        const { best, logits } = this.#logits(hidden);
        return [best.indices, best.highest, logits];
      },
      () => this.#promptRehearsal(size, rows, width),
    );
  }

  #promptRehearsal(size: number, rows: number, width: number): MlxArray[] {
    const { stage } = this.#device;
    const longest = width * BLOCK_TOKENS;
    const all: StateRow[] = [];
    for (let left = size; left > 0; left -= longest) {
      const count = Math.min(left, longest);
      all.push(this.#store.scratchRow(longest - count, count));
    }
    const empty = Array<StateRow>(rows - all.length).fill(this.#store.scratchRow(0, 0));
    const { arrays } = this.#store.promptInputs([...all, ...empty])!;
    return [new Uint32Array(size), new Int32Array(rows), ...arrays].map((each) => stage(each));
  }

  #decode(inputs: StepInputs): Forward {
    const { rows } = inputs;
    const size = this.#device.paddedRows(rows.length);
    const padding = this.#store.scratchRow(0, 1);
    const all = [...rows, ...Array<StateRow>(size - rows.length).fill(padding)];
    const { arrays, shape } = this.#store.decodeInputs(all);
    const decoding = this.#decodingOf(size, shape);
    const tokens = this.#ordered(this.#tokens(inputs, size), inputs);
    const staged = arrays.map((each) => this.#device.stage(each));
    const [indices, highest, logits] = decoding.call(tokens, ...staged);
    return { added: [], logits: logits!, best: { indices: indices!, highest: highest! } };
  }

  /** tokens (B), arrays of `decodeInputs` -> the most likely tokens (B), their logits (B), all logits (B, V) */
  #decodingOf(size: number, shape: DecodeInputs["shape"]): Traced {
    return this.#tracedOf(
      `${size} ${shape.width} ${shape.parts}`,
      ([tokens, ...arrays]) => {
        const step = this.#store.decodeStep(arrays, shape);
        const { best, logits } = this.#logits(this.#model.forward(tokens!, step));
        return [best.indices, best.highest, logits];
      },
      () => this.#rehearsal(size, shape),
    );
  }

  /**
   * One for each shape of steps, made when it first occurs. Those of ranks are built anew each time: collectives on a CPU
   * have no place in a step that is compiled or recorded for a GPU; one with NCCL's is rehearsed until its memory settles,
   * on one rank more often than on another, which would wait; and nothing may be evaluated ahead of what others send.
   */
  #tracedOf(key: string, ...[build, rehearsal]: Parameters<Device["trace"]>): Traced {
    if (this.#group || this.#isStage) return untraced(build);
    return this.#traced.getOrInsertComputed(key, () => this.#device.trace(build, rehearsal));
  }

  /** Inputs of such a step that are nobody's tokens. */
  #rehearsal(size: number, { width }: DecodeInputs["shape"]): MlxArray[] {
    const { stage } = this.#device;
    const row = this.#store.scratchRow(width * BLOCK_TOKENS - 1, 1);
    const { arrays } = this.#store.decodeInputs(Array<StateRow>(size).fill(row));
    return [stage(new Uint32Array(size)), ...arrays.map((each) => stage(each))];
  }

  #logits(hidden: MlxArray): { logits: MlxArray; best: Best } {
    const logits = this.#model.logits(hidden);
    const { indices, highest } = this.#device.best(logits);
    // In the type that is read: a conversion when the step is read would wait behind the next step.
    return { logits, best: { indices, highest: astype(highest, "float32") } };
  }

  /** The step's tokens, some of which may be what the step before draws. */
  #tokens({ tokens, fed }: StepInputs, size: number): MlxArray {
    const { stage } = this.#device;
    const known = new Uint32Array(size);
    known.set(tokens);
    if (!fed || !this.#drawn) return stage(known);
    const drawn = this.#group ? this.#group.fromFirst(this.#drawn) : this.#drawn;
    const isSame = drawn.shape[0] === size && fed.every((sample, i) => sample === i);
    if (isSame) return drawn;
    const indices = new Int32Array(size).fill(-1);
    indices.set(fed);
    const from = stage(indices);
    return where(less(from, 0), stage(known), take(drawn, maximum(from, 0)));
  }

  /** The tokens, not before the pools are as the step before and this step's block copies leave them. */
  #ordered(tokens: MlxArray, { copies, fed }: StepInputs): MlxArray {
    const { after } = this.#device;
    const own = copies.filter(({ group }) => this.#store.hasGroup(group));
    if (own.length > 0) return after(tokens, this.#store.copy(own, this.#latest));
    // Fed tokens are made by the step before.
    return fed || !this.#latest ? tokens : after(tokens, this.#latest);
  }

  #start({ samples, scores }: StepInputs, forward: Forward): Launched {
    const { hidden, added, logits, best } = forward;
    const rows = samples.map(({ row }) => row);
    const indices = rows.map((_, i) => i);
    const early = indices.filter((i) => !rows[i]!.looksBack);
    const late = indices.filter((i) => rows[i]!.looksBack);
    /** Freed when the step was read. */
    const owned = new Set<MlxArray>();
    /** Waited for where nothing of the step is read: otherwise steps would pile up on the device. */
    let unread: readonly MlxArray[] = [];
    const draws: (Draw & { members: readonly number[] })[] = [];
    let isDrawn = false;
    let failure: unknown;

    const own = (arrays: readonly MlxArray[]) => {
      for (const each of hold(arrays)) owned.add(each);
      return arrays;
    };
    const drawRows = (
      members: readonly number[],
      lookbacks: readonly Lookback[],
    ): readonly MlxArray[] => {
      if (members.length === 0) return [];
      const some = members.map((row, i) =>
        lookbacks[i] ? { ...rows[row]!, ...lookbacks[i] } : rows[row]!,
      );
      const made = draw(this.#device, logits!, some, members, best!);
      draws.push({ members, ...made });
      return own(made.pending);
    };
    /** The next step takes its tokens from these, where it may be launched before they are read. */
    const passOn = (): readonly MlxArray[] => {
      isDrawn = true;
      if (draws.length === 0 || this.#isStage || !this.#overlaps) return [];
      const all = astype(inOrder(this.#device, draws), "uint32");
      // Other ranks know of no padding.
      const next = hold(this.#group ? slice(all, 0, 0, rows.length) : all);
      if (this.#drawn) owned.add(this.#drawn);
      this.#drawn = next;
      return [next];
    };
    const start = (arrays: readonly MlxArray[]) => {
      // The next step's layers would be computed behind what the last stage has not sent yet.
      if (this.#isStage) {
        unread = [...unread, ...arrays];
        return;
      }
      asyncEvaluate(...new Set(arrays));
      this.#latest = arrays[0];
    };
    const free = () => {
      if (this.#latest && owned.has(this.#latest)) this.#latest = undefined;
      for (const each of owned) each.free();
    };

    try {
      // Without samples there is nothing else to evaluate, and keys and values must be written all the same.
      const kept = hidden && (samples.length === 0 || scores.length > 0) ? own([hidden]) : [];
      if (samples.length === 0) unread = kept;
      // The device computes these logits while the masks are made.
      if (late.length > 0) own([logits!, best!.indices, best!.highest]);
      const waiting = late.length > 0 ? [logits!] : [];
      const drawn = drawRows(early, []);
      start([...drawn, ...own(added), ...kept, ...waiting, ...(late.length === 0 ? passOn() : [])]);
    } catch (error) {
      free();
      throw error;
    }
    return {
      draw: (lookbacks) => {
        if (isDrawn) return;
        using _ = new Scope();
        try {
          start([...drawRows(late, lookbacks), ...passOn()]);
        } catch (error) {
          isDrawn = true;
          failure = error;
          throw error;
        }
      },
      read: () => {
        try {
          // Its blocks are about to be another sequence's: what it writes must be there before.
          if (failure || !isDrawn) evaluate(logits!);
          if (failure) throw failure;
          if (unread.length > 0) evaluate(...unread);
          const sampled = rows.map((): Sampled => ({ token: undefined }));
          for (const { members, read } of draws) {
            read().forEach((each, i) => {
              sampled[members[i]!] = each;
            });
          }
          return {
            sampled,
            scored: scores.map(({ at, next, top }) => this.#score(hidden!, at, next, top)),
            sums: added.map((each) => Float32Array.from(each.numbers())),
          };
        } finally {
          free();
        }
      },
    };
  }

  /** Another rank draws, of logits that this one has a part of. */
  #follow({ samples, scores }: StepInputs, { hidden, added, logits }: Forward): Launched {
    const kept = hidden && (!logits || scores.length > 0) ? [hidden] : [];
    const owned = hold([...(logits ? [logits] : []), ...kept, ...added]);
    asyncEvaluate(...owned);
    this.#latest = owned[0];
    if (samples.length > 0) {
      this.#drawn?.free();
      this.#drawn = hold(zeros([samples.length], "uint32"));
    }
    return {
      draw() {},
      read: () => {
        try {
          evaluate(...owned);
          for (const { at, next, top } of scores) this.#score(hidden!, at, next, top);
          return { sampled: [], scored: [], sums: [] };
        } finally {
          if (this.#latest === owned[0]) this.#latest = undefined;
          for (const each of owned) each.free();
        }
      },
    };
  }

  #score(hidden: MlxArray, at: number, next: Uint32Array, top: number): Score[] {
    using _ = new Scope();
    const { logits, shape } = this.#model;
    const rows = slice(hidden, 0, at, at + next.length);
    return scorePrompt(this.#device, rows, next, top, { logits, vocabulary: shape.vocabulary });
  }
}

/** What a forward pass makes, with logits where rows are sampled. */
type Forward = {
  /** (T, D), but of recorded steps. */
  hidden?: MlxArray;
  added: readonly MlxArray[];
  logits?: MlxArray;
  best?: Best;
};

function tokensOf(rows: readonly StateRow[]): number {
  return rows.reduce((sum, { count }) => sum + count, 0);
}

/** Which has the least to attend to. */
function earliestToken(rows: readonly StateRow[]): number {
  let [earliest, least, at] = [0, Infinity, 0];
  for (const { start, count } of rows) {
    if (count > 0 && start < least) [earliest, least] = [at, start];
    at += count;
  }
  return earliest;
}

const greedy: SampleRow = { sampling: { temperature: 0, seed: 0 }, index: 0 };
