// Agents write marks into their prompts that mean nothing to a model and change from one request to the next: what
// comes behind such a mark would never be found in the prefix cache. They are left out, unless the operator wants them.
import type { Settings } from "../config/settings.ts";
import type { Chat, Conversation, Message, Part } from "./conversation.ts";

/** What agents write, and what writes it. Lengths are bounded: a client may send anything. */
const marks: readonly RegExp[] = [
  // Claude Code: the first line of its system prompt.
  /^x-anthropic-billing-header:[^\n]*\n?\n?/,
  // Claude Code: at the end of its system prompt, and behind results of tools.
  /\n?\n?<total_tokens>[^<]{1,32} tokens left<\/total_tokens>/g,
];

export function withoutAgentMarks(
  conversation: Conversation,
  settings: Pick<Settings, "agentMarks">,
): Conversation {
  const { prompt } = conversation;
  if (prompt.kind !== "chat") return conversation;
  return { ...conversation, prompt: chatWithoutAgentMarks(prompt, settings) };
}

export function chatWithoutAgentMarks(
  chat: Chat,
  { agentMarks: keeps }: Pick<Settings, "agentMarks">,
): Chat {
  if (keeps) return chat;
  const messages = withoutMarks(chat.messages);
  // A prompt of nothing else is left as it is.
  return messages.length === 0 ? chat : { ...chat, messages };
}

function withoutMarks(messages: readonly Message[]): Message[] {
  const kept: Message[] = [];
  let isGap = false;
  for (const message of messages) {
    const parts = partsWithout(message);
    const isGone = parts.length === 0 && message.parts.length > 0;
    const last = kept.at(-1);
    // Templates require alternating turns: what a mark had parted is one turn.
    const isOneTurn = isGap && message.role === "user" && last?.role === "user";
    if (!isGone && last && isOneTurn) {
      kept.splice(-1, 1, { ...last, parts: [...last.parts, ...parts] });
    } else if (!isGone) kept.push({ ...message, parts });
    isGap = isGone;
  }
  return kept;
}

function partsWithout({ role, parts }: Message): readonly Part[] {
  if (role === "assistant" || role === "tool") return parts;
  const isUser = role === "user";
  const rest = parts.flatMap((part): Part[] => {
    if (part.kind !== "text") return [part];
    const text = marks.reduce((left, mark) => left.replace(mark, ""), part.text);
    if (text.trim() === "" && text !== part.text) return [];
    // Inside a user's text, they may be what it is about.
    return [isUser ? part : { ...part, text }];
  });
  return isUser && rest.length === 0 ? parts : rest;
}
