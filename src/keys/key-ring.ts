// Who may call: the keys of the command line, those of the keys file, and one that the server makes for
// its own command line. With no keys and no keys file the ring is open, and everybody is the owner.
import { timingSafeEqual } from "node:crypto";
import type { Priority } from "../engine/protocol.ts";
import { hashOf, type KeyEntry, type KeyFile } from "./key-file.ts";
import { type Clock, KeyLimiter, type Limits } from "./limiter.ts";

export type Caller = {
  readonly name: string;
  readonly tier: Priority;
  /** Whether it may manage the server. */
  readonly owner: boolean;
  readonly limiter: KeyLimiter;
};

type Keyed = { readonly hash: Buffer; readonly caller: Caller };

export type RingOptions = {
  /** Given on the command line. */
  plain?: readonly string[];
  file?: KeyFile | undefined;
  /** Made by the server for its own command line. */
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

  /** Whether no key is asked for. A keys file closes the ring, even one without keys. */
  get open(): boolean {
    return this.#open;
  }

  /** Whose key this is. Every key is compared, so that the time tells nothing. */
  find(presented: string | undefined): Caller | undefined {
    if (this.#open) return this.#anonymous;
    if (presented === undefined) return undefined;
    const hash = hashOf(presented);
    const matching = [...this.#fixed, ...this.#listed].filter((key) =>
      timingSafeEqual(key.hash, hash),
    );
    return matching[0]?.caller;
  }

  /** Puts the file's keys in the place of those before. Names that stay keep what they have used. */
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
