// The event streams of OpenAI's Responses API: read, and checked for their order.
import { expect } from "bun:test";
import type { OutputItem } from "../../src/api/openai/response-items.ts";
import { ResponseEvent, type ResponseObject } from "../../src/api/openai/responses.ts";

/** The complete events of a text; each has the name of its type. */
export function eventsIn(text: string): ResponseEvent[] {
  return text
    .split("\n\n")
    .slice(0, -1)
    .map((event) => {
      const [, name, data] = /^event: ([\w.]+)\ndata: (.*)$/.exec(event) ?? [];
      const value = JSON.parse(data!);
      expect(value.type).toBe(name);
      return ResponseEvent.parse(value);
    });
}

/**
 * Throws unless the events are the beginning of a response, or a whole one: numbered from 0, created and in progress
 * first, one item open at a time whose deltas add up to what is done, and at the end the response with these items.
 */
export function checkOrder(events: readonly ResponseEvent[]): ResponseObject["status"] {
  const done: OutputItem[] = [];
  let item: OutputItem | undefined;
  let written = "";
  let status: ResponseObject["status"] = "in_progress";
  for (const [at, event] of events.entries()) {
    expect(event.sequence_number).toBe(at);
    expect(status).toBe("in_progress");
    if ("response" in event) {
      const { type, response } = event;
      if (at < 2) expect(type).toBe(at === 0 ? "response.created" : "response.in_progress");
      status = response.status;
      expect<string>(type.replace("created", "in_progress")).toBe(`response.${status}`);
      if (status === "in_progress") continue;
      expect(response.output).toEqual(done);
      if (status !== "failed") expect(item).toBeUndefined();
      continue;
    }
    expect(at).toBeGreaterThan(1);
    expect(event.output_index).toBe(done.length);
    if (event.type === "response.output_item.added") {
      expect(item).toBeUndefined();
      item = event.item;
      expect(item.status).toBe("in_progress");
      written = "";
      continue;
    }
    if (!item) throw new Error(`${event.type} of no item`);
    if ("item" in event) {
      expect([event.item.id, event.item.type]).toEqual([item.id, item.type]);
      expect(textOf(event.item)).toBe(written);
      done.push(event.item);
      item = undefined;
      continue;
    }
    expect(event.item_id).toBe(item.id);
    if ("delta" in event) written += event.delta;
    if ("text" in event) expect(event.text).toBe(written);
    if ("arguments" in event) expect(event.arguments).toBe(written);
    if ("input" in event) expect(event.input).toBe(written);
    if (event.type === "response.content_part.done") expect(event.part.text).toBe(written);
  }
  return status;
}

export function textOf(item: OutputItem): string {
  switch (item.type) {
    case "message":
    case "reasoning":
      return item.content.map(({ text }) => text).join("");
    case "function_call":
      return item.arguments;
    case "custom_tool_call":
      return item.input;
  }
}

/** The response at the end. */
export function responseOf(events: readonly ResponseEvent[]): ResponseObject {
  const last = events.at(-1)!;
  if (!("response" in last)) throw new Error("the stream has not ended");
  return last.response;
}
