// Finds the prefixes ("heads") of a rendered chat that other chats may share: up to the first user message (system
// prompt and tools), and up to the last one. Only the template knows the text around a message, so the chat is
// rendered again up to that message, with its content replaced: a head is the common prefix of both renderings.
import { type ChatInput, type ChatMessage, TemplateError } from "./template.ts";

const COMPARED_CHARS = 4096;

/** Finds the lengths in characters of the prefixes, ascending. Yields before each rendering. */
export function* headsOf(
  input: ChatInput,
  text: string,
  render: (input: ChatInput) => string,
): Generator<void, number[]> {
  const { messages } = input;
  const isUser = ({ role }: ChatMessage) => role === "user";
  const turns = new Set([messages.findIndex(isUser), messages.findLastIndex(isUser)]);
  const heads: number[] = [];
  for (const turn of turns) {
    if (turn < 0) continue;
    yield;
    const other = otherText(turn);
    if (other !== undefined) heads.push(commonLength(text, other));
  }
  return heads.sort((a, b) => a - b);

  function otherText(turn: number): string | undefined {
    const message = messages[turn]!;
    try {
      return render({
        ...input,
        messages: [...messages.slice(0, turn), { ...message, content: otherThan(message.content) }],
        addGenerationPrompt: true,
        continueFinalMessage: false,
      });
    } catch (error) {
      // The template accepts the real chat but rejects this variant: there is no shareable prefix here.
      if (error instanceof TemplateError) return undefined;
      throw error;
    }
  }
}

/** Returns a text whose first character differs from the content's. */
function otherThan(content: unknown): string {
  return typeof content === "string" && content.trimStart().startsWith("a") ? "b" : "a";
}

function commonLength(one: string, other: string): number {
  const end = Math.min(one.length, other.length);
  let at = 0;
  while (at < end) {
    const next = at + COMPARED_CHARS;
    if (one.slice(at, next) !== other.slice(at, next)) break;
    at = next;
  }
  while (at < end && one[at] === other[at]) at++;
  return Math.min(at, end);
}
