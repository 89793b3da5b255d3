// Agents send system messages in the middle of a chat, which some templates reject or drop. For those templates,
// leading system messages are merged, and later ones become user messages.
import { type ChatMessage, TemplateError } from "../text/template/template.ts";
import type { TextModel } from "../text/text-model.ts";

export type TextMessage = ChatMessage & { content: string };

export function withSystemFirst(
  messages: readonly TextMessage[],
  text: TextModel,
): readonly TextMessage[] {
  const isSystem = ({ role }: ChatMessage) => role === "system" || role === "developer";
  // Returns the messages unchanged if no system message comes late: all templates support one at the beginning.
  if (!messages.slice(1).some(isSystem) || takesLateSystem(text)) return messages;
  const firstOther = messages.findIndex((message) => !isSystem(message));
  const end = firstOther < 0 ? messages.length : firstOther;
  const turns: TextMessage[] = [];
  let isJoined = false;
  for (const [at, message] of messages.entries()) {
    const isLate = at >= end && isSystem(message);
    const next = isLate ? { ...message, role: "user" } : message;
    const last = turns.at(-1);
    // Merges system messages with neighbours of the same role: many templates require alternating roles.
    const isOneTurn = at < end || (last?.role === next.role && (isLate || isJoined));
    if (last && isOneTurn) {
      turns.splice(-1, 1, { ...last, content: `${last.content}\n\n${next.content}` });
    } else turns.push(next);
    isJoined = isLate;
  }
  return turns;
}

const known = new WeakMap<TextModel, boolean>();
const PROBE = "Beside the point.";

/** Whether the template renders a system message that is not the first. */
function takesLateSystem(text: TextModel): boolean {
  return known.getOrInsertComputed(text, rendersProbe);
}

function rendersProbe({ chat }: TextModel): boolean {
  const messages = [
    { role: "system", content: "a" },
    { role: "user", content: "b" },
    { role: "assistant", content: "c" },
    { role: "system", content: PROBE },
    { role: "user", content: "d" },
  ];
  try {
    return chat!({ messages, addGenerationPrompt: true }).text.includes(PROBE);
  } catch (error) {
    if (error instanceof TemplateError) return false;
    throw error;
  }
}
