// Finds the request field that a token of the prompt comes from, for reports on the prefix cache. Only the template
// knows the text around messages, so the texts of messages are searched in the prompt, in order.
import type { Tokenizer } from "../text/tokenizer/tokenizer.ts";
import type { Chat, Message } from "./conversation.ts";

type Span = { field: string | undefined; begin: number; end: number };

/** Returns the request field of token `at`, if known. Text that the template adds belongs to the message after it. */
export function messageAt(
  { messages, tools }: Chat,
  prompt: Uint32Array,
  at: number,
  tokenizer: Tokenizer,
): string | undefined {
  const textOf = (tokens: Uint32Array) => tokenizer.decode(tokens, { skipControl: false });
  const text = textOf(prompt);
  const offset = textOf(prompt.subarray(0, at)).length;
  const spans: Span[] = [];
  for (const message of messages) {
    const written = writtenOf(message);
    const begin = written === "" ? -1 : text.indexOf(written, spans.at(-1)?.end);
    // The template omits or rewrites this message's text.
    if (begin < 0) continue;
    spans.push({ field: message.field, begin, end: begin + written.length });
  }
  const found = spans.find(({ end }) => end > offset);
  const first = tools[0] && text.indexOf(`"${tools[0].name}"`);
  const isInTools = first !== undefined && first >= 0 && first <= offset;
  const before = spans.findLast(({ end }) => end <= offset);
  if (isInTools && (before?.end ?? 0) <= first && offset < (found?.begin ?? text.length)) {
    return "tools";
  }
  return (found ?? spans.at(-1))?.field;
}

/** Returns the part of a message that templates usually write verbatim: its text, or else its call's name. */
function writtenOf({ parts }: Message): string {
  const texts = parts.filter((part) => part.kind === "text").map(({ text }) => text);
  const call = parts.find((part) => part.kind === "call");
  return texts.join("\n").trim() || (call?.name ?? "");
}
