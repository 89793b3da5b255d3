// One sequence of tokens: a prompt, what was generated so far, and what the model's layers keep of it.
// The scheduler alone changes it.
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import type { PrefixMiss } from "../kv/cached-tokens.ts";
import type { Cached, Held } from "../kv/kv-cache.ts";
import { blockKey } from "../kv/prefix.ts";
import type { Flow, Priority, Waiting } from "./queue.ts";

/** "abort": the client asked for it. "error": the logits were NaN, or the step failed. */
export type FinishReason = "stop" | "length" | "abort" | "error";

export type SequenceOptions = {
  id: number;
  prompt: Uint32Array;
  /** Lengths of its beginnings that other prompts may share, in ascending order. */
  heads?: readonly number[] | undefined;
  maxTokens: number;
  priority: Priority;
  /** The key that sent it; those without one count as one client. */
  client?: string | undefined;
  arrivalMs: number;
  /** Tokens that end it. */
  stopTokens: ReadonlySet<number>;
  /** It does not stop before it has so many. */
  minTokens: number;
  /** The key that its first block's key is hashed from: of the model and a salt. */
  rootKey: string;
  /** It computes its whole prompt and ignores the prefix cache. */
  fresh?: boolean;
  /** Every token of its prompt is scored. */
  scored?: boolean;
  /** Its draws may come late, so that a step has to be computed again. */
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
  /** Sequences with the same prompt that begin where this one's prompt ends. */
  readonly forks: Sequence[] = [];

  state: "waiting" | "running" | "finished" = "waiting";
  finished: FinishReason | undefined;
  level: number;
  queuedMs: number;
  /** Its blocks, and the slot of its recurrent state. */
  readonly held: Held;
  /** Tokens whose keys, values and state are in what it holds. */
  computed = 0;
  /** The same, with those of steps under way. */
  launched = 0;
  /** Tokens that steps under way will add. */
  unread = 0;
  /** Steps under way that it takes part in: until they land its blocks are in use. */
  inFlight = 0;
  /** Prompt tokens that hit the prefix cache when it first ran. */
  cachedTokens: number | undefined;
  /** Why it did not hit more then. */
  miss: PrefixMiss | undefined;
  preemptions = 0;

  readonly #rootKey: string;
  readonly #keys: string[] = [];
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

  /** Tokens that are known: the prompt and what was generated. */
  get length(): number {
    return this.#length;
  }

  get generated(): number {
    return this.#length - this.promptLength;
  }

  /** Known or under way, and not launched yet: 1 while it decodes, more in its prefill. */
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

  /** Makes the keys of the blocks that are full of known tokens once so many are computed. */
  hash(computed: number): void {
    this.key(Math.floor(Math.min(computed, this.#length) / BLOCK_TOKENS) - 1);
  }

  /** The prefix key of its block number `index`, which must be full of known tokens; of -1, the root. */
  key(index: number): string {
    if (index < 0) return this.#rootKey;
    for (let i = this.#keys.length; i <= index; i++) {
      const tokens = this.tokens(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS);
      this.#keys.push(blockKey(this.#keys[i - 1] ?? this.#rootKey, tokens));
    }
    return this.#keys[index]!;
  }
}
