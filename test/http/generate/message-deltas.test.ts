import { describe, expect, test } from "bun:test";
import type { AnswerPiece } from "../../../src/serve/answer-text.ts";
import type { MessagePart } from "../../../src/tools/syntax/format.ts";
import { MessageDeltas } from "../../support/message-deltas.ts";

const piece = (text: string, finished?: "stop" | "length"): AnswerPiece => ({
  ...{ index: 0, text, tokens: [], scores: [], finished },
});
const content = (text: string): MessagePart => ({ kind: "content", text });
const reasoning = (text: string): MessagePart => ({ kind: "reasoning", text });
const call = (name: string, id?: string): MessagePart[] => [
  { kind: "call", name, ...(id && { id }) },
  { kind: "arguments", text: `{"n": "${name}"}` },
  { kind: "call_end" },
];

/** The parser returns these parts for a text, and `rest` at the end. */
function deltasOf(parts: Record<string, MessagePart[]>, rest: MessagePart[] = [], maxCalls = 9) {
  let ids = 0;
  return new MessageDeltas({
    parser: { push: (text) => parts[text] ?? [], end: () => rest },
    newCallId: () => `id${ids++}`,
    maxCalls,
  });
}

const head = (index: number, name: string) => ({
  tool_calls: [{ index, id: `id${index}`, type: "function", function: { name, arguments: "" } }],
});
const rest = (index: number, name: string) => ({
  tool_calls: [{ index, function: { arguments: `{"n": "${name}"}` } }],
});
const whole = (index: number, name: string) => ({
  id: `id${index}`,
  type: "function",
  function: { name, arguments: `{"n": "${name}"}` },
});

describe("a message in pieces", () => {
  test("names a call once, then sends its arguments", () => {
    const message = deltasOf({ a: [...call("f"), ...call("g")], b: call("f") });
    const [first, second] = [message.push(piece("a")), message.push(piece("b"))];
    expect(first as object[]).toEqual([head(0, "f"), rest(0, "f"), head(1, "g"), rest(1, "g")]);
    expect(second as object[]).toEqual([head(2, "f"), rest(2, "f")]);
  });

  test("has thoughts and text in the order in which they come", () => {
    const message = deltasOf({
      a: [reasoning("r"), content("c")],
      b: [content("d"), ...call("f")],
    });
    expect(message.push(piece("a"))).toEqual([{ reasoning_content: "r" }, { content: "c" }]);
    const pushed: object[] = message.push(piece("b"));
    expect(pushed).toEqual([{ content: "d" }, head(0, "f"), rest(0, "f")]);
    expect(message.push(piece("nothing"))).toEqual([]);
  });

  test("flushes buffered text at its end", () => {
    const message = deltasOf({ a: [] }, [content("held")]);
    expect(message.push(piece("a"))).toEqual([]);
    expect(message.push(piece("", "stop"))).toEqual([{ content: "held" }]);
  });

  test("has the ids that the model gave to its calls, but none twice", () => {
    const named = call("f", "f:0");
    const streamed = deltasOf({ a: [...named, ...named, ...call("f")] }).push(piece("a"));
    const ids = streamed.flatMap(({ tool_calls = [] }) => tool_calls.flatMap(({ id }) => id ?? []));
    expect(ids).toEqual(["f:0", "id0", "id1"]);
    const { tool_calls } = deltasOf({ a: [...named, ...named] }).whole(piece("a", "stop"));
    expect(tool_calls as object[]).toEqual([{ ...whole(0, "f"), id: "f:0" }, whole(0, "f")]);
  });

  test("drops calls beyond the maximum", () => {
    const message = deltasOf({ a: [...call("f"), ...call("g"), content("c")] }, call("h"), 1);
    const deltas = message.push(piece("a", "stop"));
    expect(deltas as object[]).toEqual([head(0, "f"), rest(0, "f"), { content: "c" }]);
  });
});

describe("a whole message", () => {
  test("has its text joined, and null if there are only calls", () => {
    const parts = { a: [reasoning("r"), reasoning("s"), content("c"), content("d"), ...call("f")] };
    expect(deltasOf(parts, [content("e")]).whole(piece("a", "stop")) as object).toEqual({
      role: "assistant",
      content: "cde",
      reasoning_content: "rs",
      tool_calls: [whole(0, "f")],
      refusal: null,
    });
    const calls = deltasOf({ a: [...call("f"), ...call("g")] });
    expect(calls.whole(piece("a", "stop")) as object).toEqual({
      role: "assistant",
      content: null,
      tool_calls: [whole(0, "f"), whole(1, "g")],
      refusal: null,
    });
    expect(deltasOf({}).whole(piece("", "stop")) as object).toEqual({
      ...{ role: "assistant", content: "", refusal: null },
    });
  });

  test("drops calls beyond the maximum", () => {
    const message = deltasOf({ a: [...call("f"), ...call("g")] }, [], 1);
    expect(message.whole(piece("a", "stop"))).toMatchObject({ tool_calls: [{ id: "id0" }] });
  });
});

test("the finish reason is tool_calls if there are calls, unless the token limit ended the answer", () => {
  for (const [finished, withCalls] of [
    ["stop", "tool_calls"],
    ["length", "length"],
  ] as const) {
    const [pieces, one] = [deltasOf({ a: call("f") }), deltasOf({ a: call("f") })];
    const none = deltasOf({ a: [content("c")] });
    pieces.push(piece("a"));
    expect(pieces.finishReason(finished)).toBe(withCalls);
    one.whole(piece("a", finished));
    expect(one.finishReason(finished)).toBe(withCalls);
    none.push(piece("a", finished));
    expect(none.finishReason(finished)).toBe(finished);
  }
});

test("the parser learns that the token limit cut the text off", () => {
  const ends: boolean[] = [];
  const parser = {
    push: () => [],
    end(isCutOff: boolean) {
      ends.push(isCutOff);
      return [];
    },
  };
  for (const finished of [undefined, "stop", "length"] as const) {
    const message = new MessageDeltas({ parser, newCallId: () => "id", maxCalls: 9 });
    message.push(piece("a", finished));
  }
  expect(ends).toEqual([false, true]);
});
