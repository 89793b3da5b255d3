import { describe, expect, test } from "bun:test";
import { AnswerBuilder, MessageEvents } from "../../src/conversation/message-events.ts";
import type { AnswerPiece } from "../../src/serve/answer-text.ts";
import type { MessagePart } from "../../src/tools/syntax/format.ts";

const call = (name: string): MessagePart[] => [
  { kind: "call", name },
  { kind: "arguments", text: '{"a": 1}' },
  { kind: "call_end" },
];

/** The parser returns these parts for a text, and `rest` at the end. */
function eventsOf(parts: Record<string, MessagePart[]>, rest: MessagePart[] = []) {
  let ids = 0;
  return new MessageEvents({
    parser: { push: (text) => parts[text] ?? [], end: () => rest },
    newCallId: () => `id${ids++}`,
    maxCalls: 9,
  });
}

const piece = (text: string, more: Partial<AnswerPiece> = {}): AnswerPiece => ({
  ...{ index: 3, text, tokens: [7], scores: [], finished: undefined },
  ...more,
});

describe("an answer's events", () => {
  test("tell what the model writes in its order, and then the end", () => {
    const events = eventsOf({
      a: [
        { kind: "reasoning", text: "hm" },
        { kind: "content", text: "so" },
      ],
      b: call("f"),
    });
    expect(events.push(piece("a"))).toEqual({
      index: 3,
      tokens: [7],
      scores: [],
      events: [
        { kind: "thought", text: "hm" },
        { kind: "text", text: "so" },
      ],
    });
    expect(events.push(piece("b", { finished: "stop" })).events).toEqual([
      { kind: "call", call: 0, id: "id0", name: "f" },
      { kind: "arguments", call: 0, text: '{"a": 1}' },
      { kind: "call_end", call: 0 },
      { kind: "end", reason: "calls", stop: undefined },
    ]);
  });

  test("name the stop string", () => {
    const said = eventsOf({}).push(piece("", { finished: "stop", stop: "END" }));
    expect(said.events).toEqual([{ kind: "end", reason: "stop", stop: "END" }]);
  });

  test("tell a call's arguments as they come", () => {
    const [begin, ...rest] = call("f");
    const half: MessagePart = { kind: "arguments", text: '{"b"' };
    const events = eventsOf({ a: [begin!], b: [half], c: [half, rest.at(-1)!] });
    const kinds = (text: string) => events.push(piece(text)).events;
    expect(kinds("a")).toEqual([{ kind: "call", call: 0, id: "id0", name: "f" }]);
    expect(kinds("b")).toEqual([{ kind: "arguments", call: 0, text: '{"b"' }]);
    expect(kinds("c")).toEqual([
      { kind: "arguments", call: 0, text: '{"b"' },
      { kind: "call_end", call: 0 },
    ]);
  });

  test.each([
    ["length", "length"],
    ["stop", "stop"],
  ] as const)("do not end a call that is cut off: %s", (finished, reason) => {
    const said = eventsOf({}, call("f").slice(0, -1)).push(piece("", { finished }));
    expect(said.events.map(({ kind }) => kind)).toEqual(["call", "arguments", "end"]);
    expect(said.events.at(-1)).toMatchObject({ reason });
    const whole = eventsOf({}, call("f")).push(piece("", { finished }));
    expect(whole.events.map(({ kind }) => kind)).toEqual(["call", "arguments", "call_end", "end"]);
  });
});

test("a whole answer has its parts in order, with texts joined", () => {
  const builder = new AnswerBuilder(3);
  const events = eventsOf(
    {
      a: [{ kind: "content", text: "one " }],
      b: [{ kind: "content", text: "two" }, ...call("f")],
      c: [{ kind: "content", text: "three" }],
    },
    call("g").slice(0, -1),
  );
  for (const text of ["a", "b"]) builder.add(events.push(piece(text)));
  builder.add(events.push(piece("c", { finished: "length" })));
  expect(builder.answer).toEqual({
    index: 3,
    tokens: [7, 7, 7],
    scores: [],
    parts: [
      { kind: "text", text: "one two" },
      { kind: "call", id: "id0", name: "f", arguments: '{"a": 1}' },
      { kind: "text", text: "three" },
      { kind: "call", id: "id1", name: "g", arguments: '{"a": 1}', isCutOff: true },
    ],
    end: { reason: "length", stop: undefined },
  });
});
