// What the tests of formats share: some tools, and messages read whole or in pieces.
import { expect, test } from "bun:test";
import type {
  Call,
  MessageParser,
  MessagePart,
  Tool,
  ToolFormat,
} from "../../src/tools/syntax/format.ts";

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

/** A part that is put together again. */
export type ReadPart = { kind: "content" | "reasoning"; text: string } | ({ kind: "call" } & Call);

/** Puts the parts of a message together: adjacent ones of a kind, and calls with their arguments. */
export class Assembly {
  readonly parts: ReadPart[] = [];
  /** The last call, until it is complete. */
  open: Call | undefined;

  add(some: readonly MessagePart[]): void {
    for (const part of some) {
      const last = this.parts.at(-1);
      if (part.kind === "call") {
        const call = { ...part, arguments: "" };
        this.parts.push(call);
        this.open = call;
      } else if (part.kind === "arguments" || part.kind === "call_end") {
        if (!this.open) throw new Error(`not in a call: ${JSON.stringify(part)}`);
        if (part.kind === "arguments") this.open.arguments += part.text;
        else this.open = undefined;
      } else if (last && last.kind === part.kind) last.text += part.text;
      else this.parts.push({ ...part });
    }
  }
}

/** The parts of a message that arrives in these pieces. */
export function parts(
  parser: MessageParser,
  pieces: Iterable<string>,
  isCutOff = false,
): ReadPart[] {
  const message = new Assembly();
  for (const piece of pieces) message.add(parser.push(piece));
  message.add(parser.end(isCutOff));
  return message.parts;
}

export function read(format: ToolFormat, text: string): ReadPart[] {
  return parts(format.parser(tools), [text]);
}

/** A text among the expected parts is content. */
export function expectRead(
  format: ToolFormat,
  text: string,
  expected: (ReadPart | string)[],
): void {
  const all = expected.map((part) => (typeof part === "string" ? content(part) : part));
  expect(read(format, text)).toEqual(all);
}

/** Texts by name that hold no call. */
export function testContent(format: ToolFormat, texts: Record<string, string>): void {
  for (const [name, text] of Object.entries(texts)) {
    test(`${name} as content`, () => expectRead(format, text, [text]));
  }
}

export function call(name: string, given: string): ReadPart {
  return { kind: "call", name, arguments: given };
}

export function content(text: string): ReadPart {
  return { kind: "content", text };
}

export function reasoning(text: string): ReadPart {
  return { kind: "reasoning", text };
}

export const nowCall = call("now", "{}");
