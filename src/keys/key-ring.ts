// The accepted API keys: from the settings, from the keys file, and one generated for the command line on this
// machine. Without keys or a keys file, the server is open: every client has the owner's rights.
import { timingSafeEqual } from "node:crypto";
import type { Priority } from "../engine/protocol.ts";
import { hashOf, type KeyEntry, type KeyFile } from "./key-file.ts";
import { type Clock, KeyLimiter, type Limits } from "./limiter.ts";

export type Caller = {
  readonly name: string;
  readonly tier: Priority;
  /** Whether the key may manage the server. */
  readonly owner: boolean;
  readonly limiter: KeyLimiter;
};

type Keyed = { readonly hash: Buffer; readonly caller: Caller };

export type RingOptions = {
  /** Keys from the settings, as plain text. */
  plain?: readonly string[];
  file?: KeyFile | undefined;
  /** Key generated for the command line on this machine. */
  local?: string | undefined;
  now?: Clock;
};

export class KeyRing {
  readonly #now: Clock;
  readonly #anonymous: Caller;
  readonly #fixed: readonly Keyed[];
  #listed: readonly Keyed[] = [];
  #open: boolean;

  constructor({ plain = [], file, local, now = performance.now.bind(performance) }: RingOptions) {
    this.#now = now;
    this.#anonymous = this.#owner("anonymous", "NORMAL");
    this.#fixed = [
      ...plain.map((key, index) => ({
        hash: hashOf(key),
        caller: this.#owner(`api-key-${index + 1}`, "HIGH"),
      })),
      ...(local === undefined
        ? []
        : [{ hash: hashOf(local), caller: this.#owner("local", "HIGH") }]),
    ];
    this.#open = plain.length === 0;
    if (file) this.reload(file);
  }

  /** Whether the server requires no key. It requires one even if the keys file is empty. */
  get open(): boolean {
    return this.#open;
  }

  get names(): string[] {
    return [this.#anonymous, ...this.#keyed].map(({ name }) => name);
  }

  /** The callers whose requests are accepted: those of the keys, or the anonymous one. */
  get callers(): readonly Caller[] {
    return this.#open ? [this.#anonymous] : this.#keyed;
  }

  get #keyed(): Caller[] {
    return [...this.#fixed, ...this.#listed].map(({ caller }) => caller);
  }

  /** Returns the caller of a key. Compares the key with all keys, so that timing reveals nothing. */
  find(presented: string | undefined): Caller | undefined {
    if (this.#open) return this.#anonymous;
    if (presented === undefined) return undefined;
    const hash = hashOf(presented);
    const matching = [...this.#fixed, ...this.#listed].filter((key) =>
      timingSafeEqual(key.hash, hash),
    );
    return matching[0]?.caller;
  }

  /** Returns the caller with this name; undefined once its key is revoked. */
  named(name: string): Caller | undefined {
    return this.callers.find((caller) => caller.name === name);
  }

  /** Replaces the keys that came from the keys file. A key whose name is still in the file keeps its usage. */
  reload({ keys }: KeyFile): void {
    const before = new Map(this.#listed.map(({ caller }) => [caller.name, caller.limiter]));
    this.#listed = keys.map((entry) => this.#listedKey(entry, before.get(entry.name)));
    this.#open = false;
  }

  #listedKey({ name, sha256, tier, limits }: KeyEntry, before: KeyLimiter | undefined): Keyed {
    const all: Limits = {
      requestsPerMinute: limits.requests_per_minute,
      tokensPerMinute: limits.tokens_per_minute,
      concurrent: limits.concurrent,
    };
    before?.setLimits(all);
    const limiter = before ?? new KeyLimiter(all, this.#now);
    return { hash: Buffer.from(sha256, "hex"), caller: { name, tier, owner: false, limiter } };
  }

  #owner(name: string, tier: Priority): Caller {
    return { name, tier, owner: true, limiter: new KeyLimiter({}, this.#now) };
  }
}
