// Parses a whole message: a thought, then content and calls.
import { Reasoning, type Split, type Thinking } from "./reasoning.ts";
import { AnswerTags } from "./syntax/answer-tags.ts";
import type { Enforced, MessageParser, MessagePart, Tool, ToolFormat } from "./syntax/format.ts";

export type MessageOptions = {
  thinking: Thinking;
  /** Tool-call format of the model; undefined without tools, unless the format includes thoughts. */
  format?: ToolFormat | undefined;
  tools?: readonly Tool[] | undefined;
  enforced?: Enforced | undefined;
  /** Name of the tag around the model's answers. */
  answerTag?: string | undefined;
};

export function messageParser(options: MessageOptions): MessageParser {
  const { thinking, format, tools = [], enforced, answerTag } = options;
  const parser =
    format && (format.thinks || tools.length > 0) ? format.parser(tools, enforced) : plainText;
  const splitsThoughts = !format?.thinks && thinking !== "none";
  const thoughts = splitsThoughts
    ? new Reasoning(thinking === "begun", format?.thought)
    : undefined;
  const tags = answerTag === undefined ? undefined : new AnswerTags(answerTag);
  const pushAnswer = (text: string) => parser.push(tags ? tags.push(text) : text);
  const partsOf = ({ reasoning, text }: Split): MessagePart[] => [
    ...(reasoning === "" ? [] : [{ kind: "reasoning" as const, text: reasoning }]),
    ...pushAnswer(text),
  ];
  return {
    push: (text) => (thoughts ? partsOf(thoughts.push(text)) : pushAnswer(text)),
    end(isCutOff) {
      if (isCutOff) thoughts?.cut();
      const rest = thoughts ? partsOf(thoughts.end()) : [];
      if (tags) rest.push(...parser.push(tags.end(isCutOff)));
      return [...rest, ...parser.end(isCutOff)];
    },
  };
}

const plainText: MessageParser = {
  push: (text) => (text === "" ? [] : [{ kind: "content", text }]),
  end: () => [],
};
