// The event streams of Anthropic's API: read, and checked for their order.
import { expect } from "bun:test";
import {
  type AnswerBlock,
  AnthropicError,
  MessagesEvent,
} from "../../src/api/anthropic/messages.ts";

type StreamError = { type: "error"; error: { type: string; message: string } };
export type StreamEvent = MessagesEvent | StreamError;

/** The complete events of a text; each has the name of its type. */
export function eventsIn(text: string): StreamEvent[] {
  return text
    .split("\n\n")
    .slice(0, -1)
    .map((event) => {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      const value = JSON.parse(data!);
      expect(value.type).toBe(name);
      return name === "error" ? AnthropicError.strict().parse(value) : MessagesEvent.parse(value);
    });
}

/**
 * Throws unless the events are the beginning of a message, or a whole one: message_start first and once, one
 * block open at a time, deltas of the block's type, at the end message_delta and message_stop, or an error.
 */
export function checkOrder(events: readonly StreamEvent[]): "whole" | "failed" | "begun" {
  let [blocks, open] = [0, undefined as string | undefined];
  let place: "before" | "inside" | "stopped" | "over" = "before";
  const deltas: Record<string, string[]> = {
    text: ["text_delta"],
    thinking: ["thinking_delta", "signature_delta"],
    tool_use: ["input_json_delta"],
  };
  for (const [at, event] of events.entries()) {
    const fail = (problem: string): never => {
      throw new Error(`${problem} at ${at}: ${JSON.stringify(events)}`);
    };
    if (event.type === "error") {
      if (at < events.length - 1) fail("more after an error");
      return "failed";
    }
    if (event.type === "message_start") {
      if (place !== "before") fail("a second start");
      place = "inside";
      continue;
    }
    if (event.type === "message_stop") {
      if (place !== "stopped") fail("an end without message_delta");
      place = "over";
      continue;
    }
    if (place !== "inside") fail("an event outside of the message");
    switch (event.type) {
      case "content_block_start":
        if (open || event.index !== blocks) fail("a wrong start");
        open = event.content_block.type;
        break;
      case "content_block_delta":
        if (!open || event.index !== blocks) fail("a delta of no block");
        if (!deltas[open!]!.includes(event.delta.type)) fail("a delta of another block");
        break;
      case "content_block_stop":
        if (!open || event.index !== blocks) fail("a wrong stop");
        open = undefined;
        blocks += 1;
        break;
      case "message_delta":
        if (open) fail("a block that is not stopped");
        place = "stopped";
    }
  }
  return place === "over" ? "whole" : "begun";
}

/** A message put together from its events, as clients do it. */
export function messageOf(events: readonly StreamEvent[]) {
  const content: AnswerBlock[] = [];
  let [json, message] = ["", {} as object];
  for (const event of events) {
    const block = content.at(-1);
    if (event.type === "message_start") message = event.message;
    if (event.type === "content_block_start") content.push({ ...event.content_block });
    if (event.type === "content_block_delta") {
      const { delta } = event;
      if (delta.type === "text_delta" && block?.type === "text") block.text += delta.text;
      if (block?.type === "thinking") {
        if (delta.type === "thinking_delta") block.thinking += delta.thinking;
        if (delta.type === "signature_delta") block.signature += delta.signature;
      }
      if (delta.type === "input_json_delta") json += delta.partial_json;
    }
    if (event.type === "content_block_stop" && block?.type === "tool_use") {
      block.input = JSON.parse(json);
      json = "";
    }
    if (event.type === "message_delta") {
      const { usage } = message as { usage: object };
      message = { ...message, ...event.delta, usage: { ...usage, ...event.usage } };
    }
  }
  return { ...message, content };
}
