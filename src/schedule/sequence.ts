// One sequence: its prompt, the tokens generated so far, and the cache blocks and slot it holds. Only the
// scheduler changes it.
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import type { PrefixMiss } from "../kv/cached-tokens.ts";
import type { Cached, Held } from "../kv/kv-cache.ts";
import { blockKey, rootKey } from "../kv/prefix.ts";
import type { Flow, Priority, Waiting } from "./queue.ts";

/** "abort": the client asked for it. "error": the logits were NaN, or the step failed. */
export type FinishReason = "stop" | "length" | "abort" | "error";

export type SequenceOptions = {
  id: number;
  prompt: Uint32Array;
  /** Prefix lengths that other conversations may share, ascending. */
  heads?: readonly number[] | undefined;
  maxTokens: number;
  priority: Priority;
  /** The API key; sequences without one count as one client. */
  client?: string | undefined;
  arrivalMs: number;
  /** Tokens that end the sequence. */
  stopTokens: ReadonlySet<number>;
  /** Stop tokens are ignored before this many generated tokens. */
  minTokens: number;
  /** Parent key for the first block: a hash of the model and a salt. */
  rootKey: string;
  /** Whether to prefill the whole prompt, without prefix hits. */
  fresh?: boolean;
  /** Whether to compute log-probabilities of every prompt token. */
  scored?: boolean;
  /** Whether a token mask may arrive after the step's launch; the position is then recomputed. */
  revisable?: boolean;
};

export class Sequence implements Waiting<Sequence>, Cached {
  readonly id: number;
  readonly priority: Priority;
  readonly arrivalMs: number;
  readonly order: number;
  readonly flow: Flow<Sequence>;
  readonly promptLength: number;
  readonly heads: readonly number[];
  readonly maxTokens: number;
  readonly minTokens: number;
  readonly stopTokens: ReadonlySet<number>;
  readonly fresh: boolean;
  readonly revisable: boolean;
  readonly kind: "plain" | "scored";
  /** Sequences with the same prompt that fork from this one at the prompt's end. */
  readonly forks: Sequence[] = [];

  state: "waiting" | "running" | "finished" = "waiting";
  finished: FinishReason | undefined;
  level: number;
  queuedMs: number;
  /** Blocks of the sequence, and the slot of its recurrent state. */
  readonly held: Held;
  /** Tokens whose keys, values and state have been computed. */
  computed = 0;
  /** `computed`, plus tokens of steps in flight. */
  launched = 0;
  /** Tokens that steps in flight will generate. */
  unread = 0;
  /** Number of steps in flight that use the sequence's blocks. */
  inFlight = 0;
  /** Prompt tokens that hit the prefix cache when the sequence was first admitted. */
  cachedTokens: number | undefined;
  /** Why the prefix hit was not longer. */
  miss: PrefixMiss | undefined;
  preemptions = 0;
  /** Whether the sequence exceeds the model's original length, so that all its tokens use longrope's long factors. */
  isLong = false;

  #rootKey: string;
  #keys: string[] = [];
  #tokens: Uint32Array;
  #length: number;

  constructor(options: SequenceOptions, order: number, flow: Flow<Sequence>, held: Held) {
    const { prompt, maxTokens } = options;
    this.id = options.id;
    this.priority = options.priority;
    this.arrivalMs = options.arrivalMs;
    this.level = flow.level;
    this.queuedMs = options.arrivalMs;
    this.order = order;
    this.flow = flow;
    this.held = held;
    this.promptLength = prompt.length;
    this.heads = options.heads ?? [];
    this.maxTokens = maxTokens;
    this.minTokens = options.minTokens;
    this.stopTokens = options.stopTokens;
    this.fresh = options.fresh ?? false;
    this.revisable = options.revisable ?? false;
    this.kind = options.scored ? "scored" : "plain";
    this.#rootKey = options.rootKey;
    this.#tokens = new Uint32Array(prompt.length + Math.min(maxTokens, BLOCK_TOKENS));
    this.#tokens.set(prompt);
    this.#length = prompt.length;
  }

  /** Number of known tokens: prompt and generated. */
  get length(): number {
    return this.#length;
  }

  get generated(): number {
    return this.#length - this.promptLength;
  }

  /** Number of tokens, known or being generated, that no step computes yet: 1 while decoding, more in prefill. */
  get pending(): number {
    return this.#length + this.unread - this.launched;
  }

  tokens(from = 0, to = this.#length): Uint32Array {
    return this.#tokens.subarray(from, to);
  }

  append(token: number): void {
    if (this.#length === this.#tokens.length) {
      const grown = new Uint32Array(this.#length * 2);
      grown.set(this.#tokens);
      this.#tokens = grown;
    }
    this.#tokens[this.#length++] = token;
  }

  /** Switches the sequence to longrope's long factors. From now on it shares prefixes only with such sequences. */
  lengthen(): void {
    this.isLong = true;
    this.#rootKey = rootKey(this.#rootKey, "long");
    this.#keys = [];
  }

  /** Hashes the keys of all blocks that are full after `computed` tokens, before they are needed. */
  hash(computed: number): void {
    this.key(Math.floor(Math.min(computed, this.#length) / BLOCK_TOKENS) - 1);
  }

  /** Returns the prefix key of block `index`, whose tokens must all be known; -1 is the root. */
  key(index: number): string {
    if (index < 0) return this.#rootKey;
    for (let i = this.#keys.length; i <= index; i++) {
      const tokens = this.tokens(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS);
      this.#keys.push(blockKey(this.#keys[i - 1] ?? this.#rootKey, tokens));
    }
    return this.#keys[index]!;
  }
}
