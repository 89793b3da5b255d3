// Removes marks (lines that agents such as Claude Code add to prompts) unless `agentMarks` is set. They mean nothing
// to a model but change with every request, so the prompt after them would miss the prefix cache.
import type { Settings } from "../config/settings.ts";
import type { Chat, Conversation, Message, Part } from "./conversation.ts";

/** Patterns of the known marks. */
const marks: readonly RegExp[] = [
  // Claude Code: the first line of its system prompt.
  /^x-anthropic-billing-header:[^\n]*\n?\n?/,
  // Claude Code: at the end of its system prompt and after tool results.
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
  // A prompt that consists only of marks is kept.
  return messages.length === 0 ? chat : { ...chat, messages };
}

function withoutMarks(messages: readonly Message[]): Message[] {
  const kept: Message[] = [];
  let isGap = false;
  for (const message of messages) {
    const parts = partsWithout(message);
    const isGone = parts.length === 0 && message.parts.length > 0;
    const last = kept.at(-1);
    // If a whole message was a mark, the user messages around it are merged: templates require alternating turns.
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
    // A user's text is kept unchanged, with the marks in it: it may be about such marks.
    return [isUser ? part : { ...part, text }];
  });
  return isUser && rest.length === 0 ? parts : rest;
}
