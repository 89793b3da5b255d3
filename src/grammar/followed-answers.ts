// Grammar-constrained answers of one engine connection; each answer's matcher writes its next token mask.
import { type Grammar, MASK_FAILED, MASK_HEADER, type ToMatchers } from "./grammar.ts";

/** The methods of xgrammar's matcher that are used here. */
export type NativeMatcher = {
  acceptToken(token: number): boolean;
  getNextTokenBitmask(): Promise<Int32Array>;
  dispose(): void;
};

type Following = { matcher: NativeMatcher; mask: SharedArrayBuffer };

export class FollowedAnswers {
  readonly #open: (grammar: Grammar) => Promise<NativeMatcher>;
  readonly #following = new Map<number, Following>();
  #isClosed = false;

  constructor(open: (grammar: Grammar) => Promise<NativeMatcher>) {
    this.#open = open;
  }

  async follow(order: ToMatchers): Promise<void> {
    if (order.kind === "close") this.#end(order.id);
    else if (order.kind === "open") await this.#begin(order);
    else await this.#accept(order);
  }

  /** Closes the matchers of all answers. A matcher that is still being opened is freed as soon as it is open. */
  close(): void {
    this.#isClosed = true;
    for (const id of this.#following.keys()) this.#end(id);
  }

  async #begin({ id, grammar, mask }: ToMatchers & { kind: "open" }): Promise<void> {
    try {
      const matcher = await this.#open(grammar);
      if (this.#isClosed) return matcher.dispose();
      this.#following.set(id, { matcher, mask });
      await write(matcher, mask);
    } catch {
      fail(mask);
    }
  }

  async #accept({ id, token }: ToMatchers & { kind: "accept" }): Promise<void> {
    const { matcher, mask } = this.#following.get(id) ?? {};
    if (!matcher || !mask) return;
    try {
      if (matcher.acceptToken(token)) await write(matcher, mask);
      else fail(mask);
    } catch {
      fail(mask);
    }
  }

  #end(id: number): void {
    this.#following.get(id)?.matcher.dispose();
    this.#following.delete(id);
  }
}

async function write(matcher: NativeMatcher, mask: SharedArrayBuffer): Promise<void> {
  new Int32Array(mask, MASK_HEADER).set(await matcher.getNextTokenBitmask());
  const header = new Int32Array(mask, 0, 1);
  Atomics.add(header, 0, 1);
  Atomics.notify(header, 0);
}

function fail(mask: SharedArrayBuffer): void {
  const header = new Int32Array(mask, 0, 1);
  Atomics.store(header, 0, MASK_FAILED);
  Atomics.notify(header, 0);
}
