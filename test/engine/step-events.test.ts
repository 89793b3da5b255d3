import { expect, test } from "bun:test";
import type { EngineEvent } from "../../src/engine/protocol.ts";
import { received, StepEvents } from "../../src/engine/step-events.ts";

const last: EngineEvent = { index: 1, token: 7, finished: "stop", cachedTokens: 32 };

function someEvents(): StepEvents {
  const events = new StepEvents(4);
  events.addToken(1, 0, 50_000, 0);
  events.add(2, last);
  events.addToken(2 ** 40, 3, 2 ** 32 - 1, 4096);
  return events;
}

const expected = [
  { id: 1, event: { index: 0, token: 50_000, finished: undefined, cachedTokens: 0 } },
  { id: 2 ** 40, event: { index: 3, token: 2 ** 32 - 1, finished: undefined, cachedTokens: 4096 } },
  { id: 2, event: last },
];

test("the events of a step can be gone through: tokens first, then all others", () => {
  expect([...someEvents()]).toEqual(expected);
});

test("the events of a step are the same on the other side", () => {
  expect(received(structuredClone(someEvents()))).toEqual(expected);
});

test("a step without events has none on the other side", () => {
  expect(received(structuredClone(new StepEvents(0)))).toEqual([]);
});
