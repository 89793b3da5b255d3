// The events of a step, serialized for the main thread. Nearly all of them are one more token of an answer:
// these are packed into one array of numbers, because an object per event costs twenty times as much to send.
// A step has at most one event per answer, so their order does not matter.
import type { EngineEvent, RequestEvent, SentEvents } from "./protocol.ts";

const NUMBERS = 4;

export class StepEvents implements SentEvents, Iterable<RequestEvent> {
  readonly tokens: Float64Array;
  readonly others: RequestEvent[] = [];
  count = 0;

  /** `most`: maximum number of packed tokens. */
  constructor(most: number) {
    this.tokens = new Float64Array(most * NUMBERS);
  }

  /** Packs a token whose event has no other optional field, such as logprobs, an embedding or a finish reason. */
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

/** Unpacks the events, in the Worker or on the main thread. */
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
