// Decides what each step computes. One loop, one budget of tokens a step: first a token for everyone who
// is decoding, then chunks of prompts by standing, of those who run already and of those who wait. Far into
// a prompt they are smaller, for there a token takes longer, and those who decode have to wait for it. When
// blocks run out, the lowest standing gives its blocks back and is computed again later; so does a lower
// priority when there is no place left for a higher one.
//
// Steps may overlap: a step may be asked for before the one before it is committed. A sequence then takes
// part in both, and its blocks are given back only when the last of them has landed.
import { BLOCK_TOKENS, type BlockPool } from "../kv/blocks.ts";
import { compare, levels, WaitingQueue } from "./queue.ts";
import { type FinishReason, Sequence, type SequenceOptions } from "./sequence.ts";

export type SchedulerOptions = {
  pool: BlockPool;
  /** Sequences that run at once. */
  maxBatch: number;
  /** Tokens of a step; at least maxBatch. */
  tokenBudget: number;
  /** A token with more than so many before it takes longer to look at them than for all else. */
  lookback: number;
  /** The longest sequence the model takes. */
  maxLength: number;
  maxWaiting: number;
  maxWaitingTokens: number;
  /** Blocks that admission leaves free for those who run. */
  watermark: number;
  /** After so many times a sequence is passed over when another can be preempted. */
  maxPreemptions: number;
};

/** Consecutive tokens of one sequence, from `start` on. */
export type Row = {
  sequence: Sequence;
  start: number;
  count: number;
  /** Who takes a token from the row's last position: nobody inside a prompt, forks too at its end. */
  samples: readonly Sequence[];
};

export type Batch = {
  step: number;
  rows: readonly Row[];
  /** Blocks to be copied before the step writes. */
  copies: readonly { from: number; to: number }[];
  preempted: number;
};

/** What a step has brought for one sequence. */
export type Outcome = {
  sequence: Sequence;
  token: number | undefined;
  finished: FinishReason | undefined;
};

export type Refusal = "queue_full" | "too_long";

export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #pool: BlockPool;
  /** The model's limit, or what the whole pool holds. */
  readonly #maxLength: number;
  readonly #waiting = new WaitingQueue<Sequence>();
  #waitingTokens = 0;
  /** In order of standing. */
  readonly #running: Sequence[] = [];
  /** Places in the batch that forks of a step under way will take. */
  #reserved = 0;
  #order = 0;
  #step = 0;
  #inFlight = 0;
  /** How often a sequence has given its blocks back. */
  preemptions = 0;

  constructor(options: SchedulerOptions) {
    if (options.tokenBudget < options.maxBatch) {
      throw new RangeError("a step's tokens must suffice for one a sequence");
    }
    this.#options = options;
    this.#pool = options.pool;
    this.#maxLength = Math.min(options.maxLength, options.pool.count * BLOCK_TOKENS);
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

  /** Takes a request of one or more sequences with the same prompt, or says why not. */
  submit(options: readonly SequenceOptions[]): Sequence[] | Refusal {
    const { maxWaiting, maxWaitingTokens } = this.#options;
    const tokens = options[0]!.prompt.length;
    if (tokens >= this.#maxLength) return "too_long";
    const waiting = this.#waiting.length;
    const tooMany = waiting > 0 && this.#waitingTokens + tokens > maxWaitingTokens;
    if (waiting >= maxWaiting || tooMany) return "queue_full";
    const sequences = options.map((option) => new Sequence(option, this.#order++));
    const [first, ...forks] = sequences as [Sequence, ...Sequence[]];
    first.forks.push(...forks);
    this.#enqueue(first);
    return sequences;
  }

  /** Ends a sequence, wherever it stands. */
  abort(sequence: Sequence, reason: FinishReason = "abort"): void {
    if (sequence.state === "finished") return;
    this.#dequeue(sequence);
    this.#finish(sequence, reason);
  }

  /**
   * The next step, or undefined while there is nothing to compute before another one has landed. Those
   * who are held sit it out.
   */
  next(isHeld: (sequence: Sequence) => boolean = () => false): Batch | undefined {
    const { tokenBudget, lookback } = this.#options;
    const step = new StepBuilder(tokenBudget, lookback, isHeld);
    // Blocks can be taken from others only when no step under way uses them.
    if (this.#inFlight > 0) {
      if (!this.#canDecode() || this.#outranked()) return undefined;
    } else this.#makeWay(step);
    for (const sequence of [...this.#running]) {
      if (isHeld(sequence)) continue;
      if (this.#decodes(sequence) && this.#reserve(sequence, step)) this.#launch(sequence, 1, step);
    }
    for (const sequence of [...this.#running]) {
      if (sequence.state !== "running" || sequence.pending < 2 || isHeld(sequence)) continue;
      this.#admit(step, sequence);
      const count = this.#fitting(sequence, step);
      if (count > 0) this.#launch(sequence, count, step);
    }
    this.#admit(step);
    if (step.rows.length === 0) return undefined;
    this.#inFlight += 1;
    const { rows, copies, preempted } = step;
    return { step: this.#step++, rows, copies, preempted };
  }

  /**
   * Takes in what a step has computed: a token for each sample of each row, in order; undefined where
   * the model gave no number. Batches are committed in the order they were made in.
   */
  commit(batch: Batch, tokens: readonly (number | undefined)[]): Outcome[] {
    this.#inFlight -= 1;
    let at = 0;
    const outcomes: Outcome[] = [];
    for (const { sequence, start, count, samples } of batch.rows) {
      sequence.inFlight -= 1;
      sequence.computed = start + count;
      if (sequence.finished !== "error") this.#publish(sequence, start);
      // Forks first: they share the blocks that the sequence may be about to give back.
      for (const fork of samples) if (fork !== sequence) this.#beginFork(fork, sequence);
      for (const sample of samples) {
        const outcome = this.#receive(sample, tokens[at++]);
        if (outcome) outcomes.push(outcome);
      }
      this.#release(sequence);
    }
    return outcomes;
  }

  /** Ends every sequence of a step that could not be computed. */
  fail(batch: Batch): Outcome[] {
    this.#inFlight -= 1;
    return batch.rows.flatMap(({ sequence, samples }) => {
      sequence.inFlight -= 1;
      for (const sample of samples) sample.unread -= 1;
      this.#reserved -= Math.max(samples.length - 1, 0);
      const ended = new Set([sequence, ...samples]);
      return [...ended].flatMap((each) => this.#endWithError(each) ?? []);
    });
  }

  /** Throws unless every block is accounted for. */
  check(inFlight: readonly Batch[] = []): void {
    this.#pool.check();
    const holders = new Set([
      ...this.#running,
      ...inFlight.flatMap(({ rows }) => rows.map(({ sequence }) => sequence)),
    ]);
    const references = new Int32Array(this.#pool.count);
    for (const { table } of holders) for (const block of table) references[block]! += 1;
    references.forEach((expected, block) => {
      const found = this.#pool.references(block);
      if (found !== expected) {
        throw new Error(`block ${block} has ${found} references, ${expected} tables hold it`);
      }
    });
    for (const sequence of this.#waiting) {
      if (sequence.state !== "waiting" || sequence.table.length > 0) {
        throw new Error(`sequence ${sequence.id} waits and holds blocks`);
      }
    }
    for (const sequence of this.#running) {
      const { state, table, launched, computed, length, unread } = sequence;
      if (state !== "running" || computed > launched || launched > length + unread) {
        throw new Error(`sequence ${sequence.id} runs ahead of its tokens`);
      }
      if (table.length !== Math.ceil(launched / BLOCK_TOKENS)) {
        throw new Error(
          `sequence ${sequence.id} has ${table.length} blocks for ${launched} tokens`,
        );
      }
    }
    const waiting = [...this.#waiting].reduce((sum, { length }) => sum + length, 0);
    if (waiting !== this.#waitingTokens) throw new Error("the tokens that wait are miscounted");
  }

  // ---- Who runs

  #decodes(sequence: Sequence): boolean {
    // While its last token is under way, it may turn out to be the last it was to have.
    const more = sequence.generated + sequence.unread < sequence.maxTokens;
    const room = sequence.launched < this.#maxLength;
    return sequence.state === "running" && sequence.pending === 1 && more && room;
  }

  /** Whether there are blocks for the next token of everyone who decodes: one each at most. */
  #canDecode(): boolean {
    const { available } = this.#pool;
    if (this.#running.length <= available) return true;
    const lacking = this.#running.filter((each) => this.#decodes(each) && this.#missing(each, 1));
    return lacking.length <= available;
  }

  /** Blocks that a sequence lacks for so many more tokens: new ones, and one it must not write to. */
  #missing(sequence: Sequence, count: number): number {
    const blocks = Math.ceil((sequence.launched + count) / BLOCK_TOKENS);
    return blocks - sequence.table.length + (this.#sharesTail(sequence) ? 1 : 0);
  }

  /** Whether the block that its next token goes to is another's too. */
  #sharesTail({ launched, table }: Sequence): boolean {
    const tail = table[Math.floor(launched / BLOCK_TOKENS)];
    return tail !== undefined && this.#pool.references(tail) > 1;
  }

  /** Makes room for one token of a decoding sequence, if need be at the expense of lower ones. */
  #reserve(sequence: Sequence, step: StepBuilder): boolean {
    while (this.#pool.available === 0 && this.#missing(sequence, 1) > 0) {
      const victim = this.#victim() ?? sequence;
      this.#preempt(victim, step);
      step.isShort = true;
      if (victim === sequence) return false;
    }
    return true;
  }

  /** As much of a prompt as there are tokens and blocks for. */
  #fitting(sequence: Sequence, step: StepBuilder): number {
    const wanted = Math.min(step.fitting(sequence.launched), sequence.pending);
    const room = () => {
      const blocks = this.#pool.available - (this.#sharesTail(sequence) ? 1 : 0);
      return (sequence.table.length + blocks) * BLOCK_TOKENS - sequence.launched;
    };
    // Nobody else moves, so nothing would ever become free.
    while (room() <= 0 && step.rows.length === 0 && this.#inFlight === 0) {
      const victim = this.#victim(sequence);
      if (!victim) break;
      this.#preempt(victim, step);
      step.isShort = true;
    }
    return Math.min(wanted, Math.max(room(), 0));
  }

  /** The lowest standing of those whom no step computes; the much preempted are spared. */
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
    this.#enqueue(sequence);
  }

  /**
   * Of those who run with a lower priority than the first who waits, who would have to give up its place
   * for it: the lowest standing. Nobody, while there is a place, or when it has waited for so long
   * that it stands higher.
   */
  #outranked(): Sequence | undefined {
    const next = this.#waiting.first;
    if (!next || this.#hasPlace(next)) return undefined;
    const { maxPreemptions } = this.#options;
    return this.#running.findLast(
      (sequence) =>
        levels[sequence.priority] < levels[next.priority] &&
        compare(next, sequence) < 0 &&
        sequence.preemptions < maxPreemptions,
    );
  }

  #makeWay(step: StepBuilder): void {
    for (let victim = this.#outranked(); victim; victim = this.#outranked()) {
      this.#preempt(victim, step);
    }
  }

  #hasPlace(next: Sequence): boolean {
    const isFull = this.#running.length + this.#reserved >= this.#options.maxBatch;
    return !isFull && this.#room(next, () => this.#options.tokenBudget).isEnough;
  }

  /** What a sequence finds computed, how much of it would be next, and whether there are blocks for that. */
  #room(next: Sequence, fitting: StepBuilder["fitting"]) {
    const found = this.#cachedBlocks(next);
    const hit = found.length * BLOCK_TOKENS;
    const count = Math.min(fitting(hit), next.length - hit);
    // What is found cached is not available to be taken any more.
    const idle = found.filter((block) => this.#pool.references(block) === 0).length;
    const needed = Math.ceil((hit + count) / BLOCK_TOKENS) - found.length + idle;
    const watermark = this.#running.length === 0 ? 0 : this.#options.watermark;
    return { found, hit, count, isEnough: this.#pool.available - needed >= watermark };
  }

  /** Lets in who waits, but for those whose turn is after this one's; nobody while blocks are short. */
  #admit(step: StepBuilder, before?: Sequence): void {
    for (let next = this.#waiting.first; next && !step.isShort; next = this.#waiting.first) {
      if (step.isHeld(next) || (before && compare(before, next) < 0)) return;
      const isFull = this.#running.length + this.#reserved >= this.#options.maxBatch;
      if (isFull || step.isFull) return;
      const { found, hit, count, isEnough } = this.#room(next, (start) => step.fitting(start));
      if (!isEnough) return;
      this.#dequeue(next);
      for (const block of found) this.#pool.retain(block);
      next.table = found;
      next.computed = hit;
      next.launched = hit;
      next.cachedTokens ??= hit;
      this.#startRunning(next);
      this.#launch(next, count, step);
    }
  }

  /** The blocks of its beginning that are computed already. The last token is always computed. */
  #cachedBlocks(sequence: Sequence): number[] {
    const found: number[] = [];
    const most = sequence.fresh ? 0 : Math.floor((sequence.length - 1) / BLOCK_TOKENS);
    for (let i = 0; i < most; i++) {
      const block = this.#pool.find(sequence.key(i));
      if (block === undefined) break;
      found.push(block);
    }
    return found;
  }

  // ---- A step goes out, a step comes in

  #launch(sequence: Sequence, count: number, step: StepBuilder): void {
    const start = sequence.launched;
    if (this.#missing(sequence, count) > 0) this.#extend(sequence, count, step);
    sequence.launched += count;
    sequence.inFlight += 1;
    const samples = sequence.pending === 0 ? this.#samples(sequence) : [];
    for (const sample of samples) sample.unread += 1;
    step.add({ sequence, start, count, samples });
  }

  /** Gives a sequence the blocks for so many more tokens. */
  #extend(sequence: Sequence, count: number, step: StepBuilder): void {
    if (this.#sharesTail(sequence)) {
      const index = Math.floor(sequence.launched / BLOCK_TOKENS);
      const from = sequence.table[index]!;
      const [to] = this.#take(1) as [number];
      step.copies.push({ from, to });
      sequence.table[index] = to;
      this.#pool.release(from);
    }
    sequence.table.push(...this.#take(this.#missing(sequence, count)));
  }

  #take(count: number): number[] {
    const blocks = this.#pool.take(count);
    if (!blocks) throw new Error("a step was launched without room for it");
    return blocks;
  }

  /** The sequence itself, and at the end of its prompt as many forks as there are places for. */
  #samples(sequence: Sequence): Sequence[] {
    if (sequence.forks.length === 0) return [sequence];
    const places = this.#options.maxBatch - this.#running.length - this.#reserved;
    const waiting = sequence.forks.splice(0).filter(({ state }) => state === "waiting");
    const forks = waiting.splice(0, Math.max(places, 0));
    this.#reserved += forks.length;
    for (const fork of waiting) this.#enqueue(fork);
    return [sequence, ...forks];
  }

  #publish(sequence: Sequence, from: number): void {
    const full = Math.floor(sequence.computed / BLOCK_TOKENS);
    for (let i = Math.floor(from / BLOCK_TOKENS); i < full; i++) {
      this.#pool.publish(sequence.table[i]!, sequence.key(i));
    }
  }

  #beginFork(fork: Sequence, from: Sequence): void {
    this.#reserved -= 1;
    if (fork.state === "finished") return;
    fork.table = from.table.slice(0, Math.ceil(from.computed / BLOCK_TOKENS));
    for (const block of fork.table) this.#pool.retain(block);
    fork.computed = from.computed;
    fork.launched = from.computed;
    fork.cachedTokens = from.cachedTokens;
    this.#startRunning(fork);
  }

  #receive(sequence: Sequence, token: number | undefined): Outcome | undefined {
    sequence.unread -= 1;
    if (sequence.state !== "running") return undefined;
    if (token === undefined) return this.#endWithError(sequence);
    sequence.append(token);
    const { generated, minTokens, maxTokens, length, stopTokens } = sequence;
    const stopped = stopTokens.has(token) && generated >= minTokens;
    const full = generated >= maxTokens || length >= this.#maxLength;
    const finished = stopped ? "stop" : full ? "length" : undefined;
    if (finished) this.#finish(sequence, finished);
    return { sequence, token, finished };
  }

  /** What it computed must not be found by others. */
  #endWithError(sequence: Sequence): Outcome | undefined {
    if (sequence.state === "finished") {
      this.#release(sequence);
      return undefined;
    }
    for (const block of sequence.table) this.#pool.unpublish(block);
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
    sequence.state = "finished";
    sequence.finished = reason;
    this.#release(sequence);
    // Forks that wait for its prompt must now compute it themselves.
    this.#enqueueForks(sequence);
  }

  /** Gives the blocks of a sequence back that runs no more, once no step uses them. */
  #release(sequence: Sequence): void {
    if (sequence.state === "running" || sequence.inFlight > 0) return;
    // The last block first: it is the first to be evicted, and the beginning stays findable longest.
    for (const block of sequence.table.splice(0).reverse()) this.#pool.release(block);
  }
}

/** A step in the making. */
class StepBuilder {
  readonly rows: Row[] = [];
  readonly copies: { from: number; to: number }[] = [];
  preempted = 0;
  /** Someone had to give blocks back for those who run. */
  isShort = false;
  /** In tokens that look back at few. */
  #left: number;
  /** Whether someone has a token of it who would notice how long it takes. */
  #isShared = false;
  readonly #lookback: number;
  readonly isHeld: (sequence: Sequence) => boolean;

  constructor(budget: number, lookback: number, isHeld: (sequence: Sequence) => boolean) {
    this.#left = budget;
    this.#lookback = lookback;
    this.isHeld = isHeld;
  }

  get isFull(): boolean {
    return this.#left < 1;
  }

  /** How many tokens of a prompt it has room for, from this one on. */
  fitting(start: number): number {
    const fair = Math.max(this.#left / this.#price(start), BLOCK_TOKENS);
    return Math.floor(Math.min(fair, this.#left));
  }

  add(row: Row): void {
    this.rows.push(row);
    if (row.count === 1) this.#isShared = true;
    const price = row.count === 1 ? 1 : this.#price(row.start);
    this.#left = Math.max(this.#left - row.count * price, 0);
  }

  /** Of a token of a prompt. Alone, a prompt is best read in as few steps as can be. */
  #price(start: number): number {
    return this.#isShared ? Math.max(start / this.#lookback, 1) : 1;
  }
}
