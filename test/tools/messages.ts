// What the tests of formats share: some tools, and messages read whole or in pieces.

import type { MessageParser } from "../../src/tools/message.ts";
import type { MessagePart, Tool, ToolFormat } from "../../src/tools/syntax/format.ts";

export const tools: readonly Tool[] = [
  {
    name: "get_weather",
    description: "The weather of the next days.",
    parameters: {
      type: "object",
      properties: {
        city: { type: "string" },
        days: { type: "integer" },
        hourly: { type: "boolean" },
        unit: { type: "string", enum: ["celsius", "kelvin"] },
        tags: { type: "array", items: { type: "string" } },
        place: {
          type: "object",
          properties: { lat: { type: "number" }, lon: { type: "number" } },
          required: ["lat", "lon"],
        },
      },
      required: ["city"],
    },
  },
  { name: "now", parameters: { type: "object", properties: {} } },
  {
    name: "note",
    parameters: {
      type: "object",
      properties: { text: { type: "string" }, count: { type: ["integer", "null"] } },
    },
  },
];

/** The parts of a message that arrives in these pieces; adjacent parts of a kind are joined. */
export function parts(
  parser: MessageParser,
  pieces: Iterable<string>,
  isCutOff = false,
): MessagePart[] {
  const all: MessagePart[] = [];
  const add = (some: readonly MessagePart[]) => {
    for (const part of some) {
      const last = all.at(-1);
      if (part.kind !== "call" && last?.kind === part.kind) last.text += part.text;
      else all.push({ ...part });
    }
  };
  for (const piece of pieces) add(parser.push(piece));
  add(parser.end(isCutOff));
  return all;
}

export function read(format: ToolFormat, text: string): MessagePart[] {
  return parts(format.parser(tools), [text]);
}

export function call(name: string, given: string): MessagePart {
  return { kind: "call", name, arguments: given };
}

export function content(text: string): MessagePart {
  return { kind: "content", text };
}

export function reasoning(text: string): MessagePart {
  return { kind: "reasoning", text };
}
