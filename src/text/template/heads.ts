// Where the text of a chat parts from that of other chats which begin alike: behind the system prompt and the tools,
// and behind all turns but the last. Only the template knows what it writes around a message, so it renders the chat
// again up to a user's message, with another text in it: what both have in common is what others have too.
import { type ChatInput, type ChatMessage, TemplateError } from "./template.ts";

const COMPARED_CHARS = 4096;

/** The lengths in characters, in ascending order. Yields before each rendering. */
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
      // It accepts the chat as it is, and that is all that is asked of it.
      if (error instanceof TemplateError) return undefined;
      throw error;
    }
  }
}

/** A text that begins with another character. */
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
