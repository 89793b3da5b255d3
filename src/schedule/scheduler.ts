// Plans each step under one token budget: first one token for every decoding sequence, then chunked prefill of
// running and waiting sequences in the queue's order. Prefill is sized to take about the target time, less while
// streams decode, and chunks shrink deep into a prompt, where a token costs more. When blocks run out, the sequence
// with the lowest standing is preempted and recomputed later. When the batch is full and a higher priority waits, a
// lower one is preempted.
//
// Steps may overlap: a step may be planned before its predecessor is committed. A sequence may then be in both, and
// its blocks are released only when the later step has landed.
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import type { BlockCopy, Hit, KvCache, SlotMove } from "../kv/kv-cache.ts";
import { type Client, compare, compareService, FairQueue, type Flow, levels } from "./queue.ts";
import { type FinishReason, Sequence, type SequenceOptions } from "./sequence.ts";
import { BESIDE_ANSWER, type PromptTokens } from "./step-size.ts";

/** Decoding sequences per prompt above which inter-token latency outweighs prefill throughput (`besideTokens`). */
const STREAMS_A_PROMPT = 12;

export type SchedulerOptions = {
  cache: KvCache;
  /** Maximum number of running sequences. */
  maxBatch: number;
  /** Maximum tokens per step; at least maxBatch. */
  tokenBudget: number;
  /**
   * Token budget of a step with at least STREAMS_A_PROMPT decoding sequences per prompt; prefill gets at least one
   * block. If there are fewer, and several prompts, prefill throughput outweighs inter-token latency, so chunks deep
   * in a prompt are not made smaller.
   */
  besideTokens?: number | undefined;
  /**
   * Number of pipeline stages. With n stages a step decodes only 1/n of the sequences, so that every stage has a step
   * to compute.
   */
  stages?: number | undefined;
  /** Prompt tokens that fill a step's target time; updated as step times are learned. */
  sizes: Readonly<PromptTokens>;
  nowMs: () => number;
  /** Context length at which attention costs as much as the rest of the layer. */
  lookback: number;
  /** Maximum sequence length of the model. */
  maxLength: number;
  /** Maximum length for longrope's short factors; a longer sequence is recomputed from its first token. */
  originalLength?: number | undefined;
  maxWaiting: number;
  maxWaitingTokens: number;
  /** Blocks per group that admission keeps free for running sequences. */
  watermark: number;
  /** Preemptions after which a sequence is preempted only as a last resort. */
  maxPreemptions: number;
};

/** Consecutive tokens of one sequence, from `start` on. */
export type Row = {
  sequence: Sequence;
  start: number;
  count: number;
  /** Slots that the sequence's recurrent state is read from and written to. */
  move?: SlotMove | undefined;
  /** Sequences that sample at the row's last position: none before the prompt's end; at its end, the forks too. */
  samples: readonly Sequence[];
};

export type Batch = {
  step: number;
  rows: readonly Row[];
  /** Block copies (copy-on-write) to make before the step writes. */
  copies: readonly BlockCopy[];
  preempted: number;
  /** Prompt tokens of the step, weighted by cost: a token at the start of a context costs 1. */
  prompt: Readonly<PromptTokens>;
};

/**
 * A step's result for one sample: a token, undefined if the logits were NaN, or "late" if the token mask had not
 * arrived and the position must be recomputed.
 */
export type Drawn = number | "late" | undefined;

/** A step's result for one sequence. */
export type Outcome = {
  sequence: Sequence;
  token: number | undefined;
  finished: FinishReason | undefined;
};

export type Refusal = "queue_full" | "too_long";

export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #cache: KvCache;
  /** The model's limit or the pool's capacity, whichever is lower. */
  readonly #maxLength: number;
  readonly #originalLength: number;
  readonly #waiting = new FairQueue<Sequence>();
  #waitingTokens = 0;
  /** Running sequences by standing (priority and age), the highest first. */
  readonly #running: Sequence[] = [];
  /** Places in the batch reserved for forks, which begin when the step that samples for them lands. */
  #reserved = 0;
  #order = 0;
  #step = 0;
  #inFlight = 0;
  preemptions = 0;

  constructor(options: SchedulerOptions) {
    if (options.tokenBudget < options.maxBatch) {
      throw new RangeError("the token budget must be at least the batch size");
    }
    this.#options = options;
    this.#cache = options.cache;
    this.#maxLength = Math.min(options.maxLength, options.cache.maxLength);
    this.#originalLength = options.originalLength ?? Number.POSITIVE_INFINITY;
  }

  get waiting(): Iterable<Sequence> & { readonly length: number } {
    return this.#waiting;
  }

  get running(): readonly Sequence[] {
    return this.#running;
  }

  get idle(): boolean {
    return this.#running.length === 0 && this.#waiting.length === 0 && this.#inFlight === 0;
  }

  /** Queues a request, which is one or more sequences with the same prompt; returns the reason if it is refused. */
  submit(options: readonly SequenceOptions[]): Sequence[] | Refusal {
    const { prompt, client } = options[0]!;
    if (prompt.length >= this.#maxLength) return "too_long";
    if (!this.#canWait(prompt.length, client)) return "queue_full";
    const prefilling = this.#running.filter(({ pending }) => pending > 1);
    const sequences = options.map((option) => {
      const flow = this.#waiting.enter(option.client ?? "", option.priority, prefilling);
      return new Sequence(option, this.#order++, flow, this.#cache.open());
    });
    if (prompt.length > this.#originalLength) for (const each of sequences) each.lengthen();
    const [first, ...forks] = sequences as [Sequence, ...Sequence[]];
    first.forks.push(...forks);
    this.#enqueue(first);
    return sequences;
  }

  /** Ends a sequence in any state. */
  abort(sequence: Sequence): void {
    if (sequence.state === "finished") return;
    this.#dequeue(sequence);
    this.#finish(sequence, "abort");
  }

  /**
   * Plans the next step, or returns undefined if there is nothing to compute until another one lands. Stalled
   * sequences, whose token masks are missing, are neither decoded nor admitted.
   */
  next(isStalled: (sequence: Sequence) => boolean = () => false): Batch | undefined {
    const step = new StepBuilder(this.#options, isStalled);
    // Preemption needs a sequence whose blocks are not used by a step in flight, so wait for the steps to land.
    if (this.#inFlight > 0) {
      if (!this.#canDecode() || this.#outranked(step)) return undefined;
    } else {
      this.#makeWay(step);
      if (this.#stages > 1) this.#makeRoom(step);
    }
    const most = this.#mostDecoding;
    for (const sequence of [...this.#running]) {
      if (step.rows.length >= most) break;
      if (isStalled(sequence)) continue;
      if (this.#decodes(sequence) && this.#reserve(sequence, step)) this.#launch(sequence, 1, step);
    }
    this.#prefill(step);
    if (step.rows.length === 0) return undefined;
    this.#inFlight += 1;
    const { rows, copies, preempted, prompt } = step;
    return { step: this.#step++, rows, copies, preempted, prompt };
  }

  /** Applies a step's results, which `drawn` lists row by row, one per sample. Batches are committed in order. */
  commit(batch: Batch, drawn: readonly Drawn[]): Outcome[] {
    this.#inFlight -= 1;
    let at = 0;
    const outcomes: Outcome[] = [];
    for (const row of batch.rows) {
      const { sequence, start, count, move, samples } = row;
      sequence.inFlight -= 1;
      sequence.computed = start + count;
      if (sequence.finished !== "error") this.#cache.landed(sequence, start);
      // Forks first: they retain blocks that the sequence may be about to release.
      for (const fork of samples) if (fork !== sequence) this.#beginFork(fork, sequence);
      for (const sample of samples) {
        const outcome = this.#receive(sample, drawn[at++], row);
        if (outcome) outcomes.push(outcome);
      }
      this.#cache.leave(sequence, start, move, sequence.finished !== "error");
      this.#release(sequence);
      for (const sample of samples) this.#lengthen(sample);
    }
    return outcomes;
  }

  /** Ends every sequence of a step that could not be computed. */
  fail(batch: Batch): Outcome[] {
    this.#inFlight -= 1;
    return batch.rows.flatMap(({ sequence, start, move, samples }) => {
      sequence.inFlight -= 1;
      this.#cache.leave(sequence, start, move, false);
      for (const sample of samples) sample.unread -= 1;
      this.#reserved -= Math.max(samples.length - 1, 0);
      const ended = new Set([sequence, ...samples]);
      return [...ended].flatMap((each) => this.#endWithError(each) ?? []);
    });
  }

  /** After a loss of device memory, without steps in flight: ends running sequences, clears the prefix cache. */
  failRunning(): Outcome[] {
    const outcomes = [...this.#running].flatMap((sequence) => this.#endWithError(sequence) ?? []);
    this.#cache.clear();
    return outcomes;
  }

  /** Ends every waiting sequence with an error, since no step will be launched. */
  failWaiting(): Outcome[] {
    const outcomes: Outcome[] = [];
    // Ending a sequence may queue the forks that share its prompt, so the queue is read again after each.
    for (let [next] = this.#waiting; next; [next] = this.#waiting) {
      outcomes.push(this.#endWithError(next)!);
    }
    return outcomes;
  }

  /** Throws unless the reference counts of all blocks and slots match the sequences that hold them. */
  check(inFlight: readonly Batch[] = []): void {
    const rows = inFlight.flatMap((batch) => batch.rows);
    const holders = new Set([
      ...this.#running,
      ...rows.flatMap(({ sequence, samples }) => [sequence, ...samples]),
    ]);
    this.#cache.check(
      holders,
      rows.flatMap(({ move }) => move ?? []),
    );
    for (const sequence of this.#waiting) {
      if (sequence.state !== "waiting" || sequence.held.blocks > 0) {
        throw new Error(`sequence ${sequence.id} waits and holds blocks`);
      }
    }
    for (const sequence of this.#running) {
      const { state, held, launched, computed, length, unread } = sequence;
      if (state !== "running" || computed > launched || launched > length + unread) {
        throw new Error(`sequence ${sequence.id} runs ahead of its tokens`);
      }
      for (const { length: blocks } of held.tables) {
        if (blocks !== Math.ceil(launched / BLOCK_TOKENS)) {
          throw new Error(`sequence ${sequence.id} has ${blocks} blocks for ${launched} tokens`);
        }
      }
    }
    const waiting = [...this.#waiting].reduce((sum, { length }) => sum + length, 0);
    if (waiting !== this.#waitingTokens) throw new Error("the tokens that wait are miscounted");
  }

  // ---- Planning

  /** Whether a request may wait. A named client may use at most half of the remaining queue. */
  #canWait(tokens: number, client: string | undefined): boolean {
    const { maxWaiting, maxWaitingTokens } = this.#options;
    const places = maxWaiting - this.#waiting.length;
    const room = maxWaitingTokens - this.#waitingTokens - tokens;
    if (places <= 0 || (this.#waiting.length > 0 && room < 0)) return false;
    const own = client === undefined ? [] : this.#waiting.of(client);
    const ownTokens = own.reduce((sum, { length }) => sum + length, 0);
    return own.length === 0 || (own.length < places && ownTokens <= room);
  }

  #decodes(sequence: Sequence): boolean {
    // The token in flight may be the sequence's last.
    const more = sequence.generated + sequence.unread < sequence.maxTokens;
    const room =
      sequence.launched < this.#maxLength &&
      (sequence.isLong || sequence.launched < this.#originalLength);
    if (this.#stages > 1 && sequence.unread > 0) return false;
    return sequence.state === "running" && sequence.pending === 1 && more && room;
  }

  get #stages(): number {
    return this.#options.stages ?? 1;
  }

  /** Maximum number of decoding sequences in a step. */
  get #mostDecoding(): number {
    if (this.#stages === 1) return Number.POSITIVE_INFINITY;
    const decoding = this.#running.filter(({ pending }) => pending === 1);
    return Math.ceil(decoding.length / this.#stages);
  }

  /** Whether every decoding sequence has room for its next token. */
  #canDecode(): boolean {
    if (this.#cache.hasBlockFor(this.#running.length)) return true;
    const decoding = this.#running.filter((each) => this.#decodes(each));
    return this.#cache.hasRoom(decoding, 1);
  }

  /**
   * With pipeline stages, makes room for all decoding sequences at once: while a step with some of them is in flight,
   * none can be preempted for the others.
   */
  #makeRoom(step: StepBuilder): void {
    while (!this.#canDecode()) {
      const decoding = this.#running.filter((each) => this.#decodes(each));
      const victim = decoding.length > 1 ? this.#victim() : undefined;
      if (!victim) return;
      this.#preempt(victim, step);
      step.isShort = true;
    }
  }

  /** Makes room for one token of a decoding sequence; if necessary, preempts sequences of lower standing. */
  #reserve(sequence: Sequence, step: StepBuilder): boolean {
    while (!this.#cache.hasRoom([sequence], 1)) {
      const victim = this.#victim() ?? sequence;
      this.#preempt(victim, step);
      step.isShort = true;
      if (victim === sequence) return false;
    }
    return true;
  }

  /** Adds chunks of prompts in the queue's order until tokens or blocks run out. */
  #prefill(step: StepBuilder): void {
    const isPrefilling = (each: Sequence) => each.pending > 1 && !step.isStalled(each);
    const running = this.#running.filter(isPrefilling);
    const { besideTokens } = this.#options;
    const decoding = step.rows.length;
    const prompts = running.length + this.#waiting.length;
    if (besideTokens && decoding >= STREAMS_A_PROMPT * prompts) step.limit(besideTokens);
    else if (besideTokens && prompts > 1) step.hurry();
    let isOpen = !this.#isFull;
    while (!step.isFull && (isOpen || running.length > 0)) {
      const next = this.#waiting.next(step.nowMs, isOpen ? step.isStalled : () => true, running);
      if (!next) break;
      if (next.state === "waiting") {
        isOpen = this.#admit(next, step);
        continue;
      }
      running.splice(running.indexOf(next), 1);
      this.#advance(next, step);
    }
    if (step.rows.length > 0 || this.#inFlight > 0) return;
    // Deadlock: no sequence advances, so no block would ever be freed. The sequence of highest standing preempts
    // others.
    const highest = this.#running.find(isPrefilling);
    if (!highest) return;
    while (this.#cache.freeTokens(highest) <= 0) {
      const victim = this.#victim(highest);
      if (!victim) return;
      this.#preempt(victim, step);
    }
    this.#advance(highest, step);
  }

  #advance(sequence: Sequence, step: StepBuilder): void {
    const { launched } = sequence;
    const free = this.#cache.freeTokens(sequence);
    const count = Math.min(step.fitting(sequence, launched), free);
    if (count <= 0) return;
    this.#waiting.serve(sequence, step.nowMs);
    this.#launch(sequence, this.#cache.stride(sequence, launched, count), step);
  }

  /** Returns the sequence to preempt: the lowest in standing, not in flight, preferably not preempted too often. */
  #victim(spared?: Sequence): Sequence | undefined {
    const able = this.#running.filter((each) => each !== spared && each.inFlight === 0);
    const { maxPreemptions } = this.#options;
    return able.findLast(({ preemptions }) => preemptions < maxPreemptions) ?? able.at(-1);
  }

  #preempt(sequence: Sequence, step: StepBuilder): void {
    this.#stopRunning(sequence);
    sequence.state = "waiting";
    this.#release(sequence);
    sequence.computed = 0;
    sequence.launched = 0;
    sequence.preemptions += 1;
    this.preemptions += 1;
    step.preempted += 1;
    this.#waiting.addAgain(sequence, step.nowMs);
    this.#waitingTokens += sequence.length;
  }

  /**
   * Returns the running sequence to preempt for the next waiting one: the lowest in standing that has a lower level,
   * or whose client has been served more and has more running sequences. Undefined if the waiting one fits.
   */
  #outranked(step: StepBuilder): Sequence | undefined {
    const next = this.#waiting.next(step.nowMs, step.isStalled);
    if (!next || this.#hasPlace(next, step)) return undefined;
    const level = levels[next.priority];
    const places = new Map<Client<Sequence>, number>();
    for (const { flow } of this.#running) {
      places.set(flow.client, (places.get(flow.client) ?? 0) + 1);
    }
    const fairPlaces = (places.get(next.flow.client) ?? 0) + 1;
    return this.#running.findLast((sequence) => {
      if (sequence.preemptions >= this.#options.maxPreemptions) return false;
      // If aging has raised the running sequence above the waiting one, it is not preempted.
      if (sequence.level < level && compare(next, sequence) < 0) return true;
      const isBehind = sequence.level <= level && compareService(next.flow, sequence.flow) < 0;
      return isBehind && places.get(sequence.flow.client)! > fairPlaces;
    });
  }

  #makeWay(step: StepBuilder): void {
    for (let victim = this.#outranked(step); victim; victim = this.#outranked(step)) {
      this.#preempt(victim, step);
    }
  }

  get #isFull(): boolean {
    return this.#running.length + this.#reserved >= this.#options.maxBatch;
  }

  #hasPlace(next: Sequence, step: StepBuilder): boolean {
    return !this.#isFull && this.#room(next, step).isEnough;
  }

  /** Looks up the sequence's prefix hit, the size of its first chunk, and whether there are blocks for that chunk. */
  #room(next: Sequence, step: StepBuilder) {
    const hit = this.#cache.lookup(next);
    const count = Math.min(step.fitting(next, hit.tokens), this.#cache.maxStride);
    const watermark = this.#running.length === 0 ? 0 : this.#options.watermark;
    return { hit, count, isEnough: this.#cache.canBegin(hit, count, watermark) };
  }

  /** Starts a waiting sequence if the batch and the blocks have room; returns whether it did. */
  #admit(next: Sequence, step: StepBuilder): boolean {
    if (step.isShort || this.#isFull) return false;
    const { hit, count, isEnough } = this.#room(next, step);
    if (!isEnough || count === 0) return false;
    this.#dequeue(next);
    this.#begin(next, hit);
    if (next.cachedTokens === undefined) {
      next.cachedTokens = hit.tokens;
      next.miss = this.#cache.explain(next, hit);
    }
    this.#waiting.serve(next, step.nowMs);
    this.#startRunning(next);
    this.#launch(next, this.#cache.stride(next, hit.tokens, count), step);
    return true;
  }

  #begin(sequence: Sequence, hit: Hit): void {
    this.#cache.begin(sequence, hit);
    sequence.computed = hit.tokens;
    sequence.launched = hit.tokens;
  }

  /** Restarts the prefill of a sequence that has outgrown the original length, with longrope's long factors. */
  #lengthen(sequence: Sequence): void {
    if (sequence.state !== "running" || sequence.isLong) return;
    if (sequence.length <= this.#originalLength) return;
    this.#cache.release(sequence, true);
    sequence.lengthen();
    this.#begin(sequence, this.#cache.lookup(sequence));
  }

  // ---- Launch and results

  #launch(sequence: Sequence, count: number, step: StepBuilder): void {
    const start = sequence.launched;
    const { copies, move } = this.#cache.advance(sequence, count);
    step.copies.push(...copies);
    sequence.launched += count;
    sequence.inFlight += 1;
    sequence.flow.client.served += count;
    const samples = sequence.pending === 0 ? this.#samples(sequence) : [];
    for (const sample of samples) sample.unread += 1;
    step.add({ sequence, start, count, move, samples });
  }

  /** Returns the sequence itself and, at the end of its prompt, as many forks as fit in the batch. */
  #samples(sequence: Sequence): Sequence[] {
    if (sequence.forks.length === 0) return [sequence];
    const places = this.#options.maxBatch - this.#running.length - this.#reserved;
    const waiting = sequence.forks.splice(0).filter(({ state }) => state === "waiting");
    const forks = waiting.splice(0, Math.max(places, 0));
    this.#reserved += forks.length;
    this.#cache.reserve(sequence, forks);
    for (const fork of waiting) this.#enqueue(fork);
    return [sequence, ...forks];
  }

  #beginFork(fork: Sequence, from: Sequence): void {
    this.#reserved -= 1;
    if (fork.state === "finished") return;
    this.#cache.fork(fork, from);
    fork.computed = from.computed;
    fork.launched = from.computed;
    fork.cachedTokens = from.cachedTokens;
    this.#startRunning(fork);
  }

  #receive(sequence: Sequence, token: Drawn, row: Row): Outcome | undefined {
    sequence.unread -= 1;
    if (sequence.state !== "running") return undefined;
    if (token === "late") {
      // Recompute the sequence's last position to sample it again.
      sequence.computed = this.#cache.stepBack(sequence, row.start, row.move);
      sequence.launched = sequence.computed;
      return undefined;
    }
    if (token === undefined) return this.#endWithError(sequence);
    sequence.append(token);
    const { generated, minTokens, maxTokens, length, stopTokens } = sequence;
    const stopped = stopTokens.has(token) && generated >= minTokens;
    const full = generated >= maxTokens || length >= this.#maxLength;
    const finished = stopped ? "stop" : full ? "length" : undefined;
    if (finished) this.#finish(sequence, finished);
    return { sequence, token, finished };
  }

  /** Ends the sequence and unpublishes its blocks, so that no other sequence hits them. */
  #endWithError(sequence: Sequence): Outcome | undefined {
    if (sequence.state === "finished") {
      this.#release(sequence);
      return undefined;
    }
    this.#cache.unpublish(sequence);
    this.#dequeue(sequence);
    this.#finish(sequence, "error");
    return { sequence, token: undefined, finished: "error" };
  }

  // ---- States

  #enqueue(sequence: Sequence): void {
    sequence.state = "waiting";
    this.#waiting.add(sequence);
    this.#waitingTokens += sequence.length;
  }

  #dequeue(sequence: Sequence): void {
    if (this.#waiting.remove(sequence)) this.#waitingTokens -= sequence.length;
  }

  #enqueueForks(sequence: Sequence): void {
    for (const fork of sequence.forks.splice(0)) if (fork.state === "waiting") this.#enqueue(fork);
  }

  #startRunning(sequence: Sequence): void {
    sequence.state = "running";
    const at = this.#running.findIndex((other) => compare(sequence, other) < 0);
    this.#running.splice(at < 0 ? this.#running.length : at, 0, sequence);
  }

  #stopRunning(sequence: Sequence): void {
    const at = this.#running.indexOf(sequence);
    if (at >= 0) this.#running.splice(at, 1);
  }

  #finish(sequence: Sequence, reason: FinishReason): void {
    this.#stopRunning(sequence);
    this.#waiting.leave(sequence.flow);
    sequence.state = "finished";
    sequence.finished = reason;
    this.#release(sequence);
    // Forks that waited for the sequence's prompt now prefill it themselves.
    this.#enqueueForks(sequence);
  }

  /** Releases the blocks of a sequence that has stopped, once no step in flight uses them. */
  #release(sequence: Sequence): void {
    if (sequence.state === "running" || sequence.inFlight > 0) return;
    this.#cache.release(sequence, sequence.finished !== "error");
  }
}

/** A step being planned. */
class StepBuilder {
  readonly rows: Row[] = [];
  readonly copies: BlockCopy[] = [];
  readonly prompt: PromptTokens = { plain: 0, scored: 0 };
  readonly nowMs: number;
  readonly isStalled: (sequence: Sequence) => boolean;
  preempted = 0;
  /** Whether blocks ran out, so that a sequence was preempted. */
  isShort = false;
  readonly #sizes: Readonly<PromptTokens>;
  readonly #lookback: number;
  /** Remaining token budget, weighted by cost. */
  #left: number;
  /** Fraction of the target time that is left for prefill. */
  #share = 1;
  /** First flow to complete a prompt in this step. Prefill of other flows is then limited to `#shareBeside`. */
  #answered: Flow<Sequence> | undefined;
  #shareBeside = BESIDE_ANSWER;
  /** Whether a sequence decodes in this step, which makes the step's duration an inter-token latency. */
  #isShared = false;
  /** Whether chunks keep their size deep in a prompt, because prefill throughput outweighs inter-token latency. */
  #isHurried = false;

  constructor(options: SchedulerOptions, isStalled: (sequence: Sequence) => boolean) {
    this.#left = options.tokenBudget;
    this.#lookback = options.lookback;
    this.#sizes = { ...options.sizes };
    this.nowMs = options.nowMs();
    this.isStalled = isStalled;
  }

  /** Limits the step to `tokens`, including decoding ones; prefill keeps at least one block. */
  limit(tokens: number): void {
    this.#left = Math.min(this.#left, Math.max(tokens - this.rows.length, BLOCK_TOKENS));
  }

  hurry(): void {
    this.#isHurried = true;
  }

  get isFull(): boolean {
    return this.#left < 1 || this.#share <= 0;
  }

  /** Number of tokens of a prompt, from `start` on, that fit in the step. */
  fitting({ kind, flow, length, unread }: Sequence, start: number): number {
    const isBeside = this.#isBeside(flow);
    const share = isBeside ? Math.min(this.#shareBeside, this.#share) : this.#share;
    const timely = Math.max(share, 0) * this.#sizes[kind];
    const wanted = length + unread - start;
    // A chunk of less than a block is not worth delaying the first token of another flow.
    if (isBeside && timely < Math.min(wanted, BLOCK_TOKENS)) return 0;
    const left = Math.min(this.#left, timely);
    const fair = Math.max(left / this.#price(start), BLOCK_TOKENS);
    return Math.floor(Math.min(fair, left, wanted));
  }

  add(row: Row): void {
    this.rows.push(row);
    const { sequence, start, count } = row;
    const { kind, flow, generated, unread } = sequence;
    if (generated + unread === 1) this.#answered ??= flow;
    if (count === 1) {
      this.#isShared = true;
      this.#left -= 1;
      return;
    }
    const tokens = count * this.#price(start);
    this.prompt[kind] += tokens;
    this.#left -= tokens;
    this.#share -= tokens / this.#sizes[kind];
    if (this.#isBeside(flow)) this.#shareBeside -= tokens / this.#sizes[kind];
  }

  #isBeside(flow: Flow<Sequence>): boolean {
    return this.#answered !== undefined && this.#answered !== flow;
  }

  /** Cost of a prompt token at position `start`; the first costs 1. Depth counts only while sequences decode. */
  #price(start: number): number {
    return this.#isShared && !this.#isHurried ? 1 + start / this.#lookback : 1;
  }
}
