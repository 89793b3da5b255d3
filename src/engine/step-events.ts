// What a step has brought, in the form in which it goes to the main thread. Nearly all of it is one more
// token for an answer: those are numbers in one array, for to send an object each costs twenty times as
// much. A step has one event for an answer at most, so that the order between them says nothing.
import type { EngineEvent, RequestEvent, SentEvents } from "./protocol.ts";

const NUMBERS = 4;

export class StepEvents implements SentEvents, Iterable<RequestEvent> {
  readonly tokens: Float64Array;
  readonly others: RequestEvent[] = [];
  count = 0;

  /** With room for so many. */
  constructor(most: number) {
    this.tokens = new Float64Array(most * NUMBERS);
  }

  /** A token, and nothing else to tell. */
  addToken(id: number, index: number, token: number, cachedTokens: number): void {
    const at = this.count++ * NUMBERS;
    this.tokens[at] = id;
    this.tokens[at + 1] = index;
    this.tokens[at + 2] = token;
    this.tokens[at + 3] = cachedTokens;
  }

  add(id: number, event: EngineEvent): void {
    this.others.push({ id, event });
  }

  [Symbol.iterator](): Iterator<RequestEvent> {
    return received(this).values();
  }
}

/** The events again, on whichever side. */
export function received({ tokens, count, others }: SentEvents): RequestEvent[] {
  const events: RequestEvent[] = [];
  for (let at = 0; at < count * NUMBERS; at += NUMBERS) {
    const event = {
      index: tokens[at + 1]!,
      token: tokens[at + 2]!,
      finished: undefined,
      cachedTokens: tokens[at + 3]!,
    };
    events.push({ id: tokens[at]!, event });
  }
  return events.concat(others);
}
