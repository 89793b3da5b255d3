// The parser of a whole message: thoughts, then content and calls.
import type { MessageParser, MessagePart, Tool, ToolFormat } from "./format.ts";
import { Reasoning, type Split, type Thinking } from "./reasoning.ts";

export type MessageOptions = {
  thinking: Thinking;
  /** The model's; undefined if no tools are asked for, unless thoughts are part of it. */
  format?: ToolFormat | undefined;
  tools?: readonly Tool[] | undefined;
};

export function messageParser({ thinking, format, tools }: MessageOptions): MessageParser {
  if (format?.thinks) return format.parser(tools ?? []);
  const calls = format && tools ? format.parser(tools) : plainText;
  if (thinking === "none") return calls;
  const thoughts = new Reasoning(thinking === "begun");
  const partsOf = ({ reasoning, text }: Split): MessagePart[] => [
    ...(reasoning === "" ? [] : [{ kind: "reasoning" as const, text: reasoning }]),
    ...calls.push(text),
  ];
  return {
    push: (text) => partsOf(thoughts.push(text)),
    end: () => [...partsOf(thoughts.end()), ...calls.end()],
  };
}

const plainText: MessageParser = {
  push: (text) => (text === "" ? [] : [{ kind: "content", text }]),
  end: () => [],
};
