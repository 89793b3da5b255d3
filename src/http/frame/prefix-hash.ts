// A hash of a chat's beginning as a response header, equal for all turns of the chat. Proxies in front of several
// servers use it to route a chat to the server with its prefix cached.
import type { Chat, Conversation } from "../../conversation/conversation.ts";

export const PREFIX_HEADER = "x-prefix-hash";

/** Hexadecimal digits of the hash; enough to distinguish chats. */
const LENGTH = 32;

/** Hashes the messages up to the first user message; returns undefined if the prompt is not a chat. */
export function prefixHash({ prompt }: Pick<Conversation, "prompt">): string | undefined {
  if (prompt.kind !== "chat") return undefined;
  const hasher = new Bun.CryptoHasher("sha256");
  for (const text of beginningOf(prompt)) hasher.update(`${text.length} `).update(text);
  return hasher.digest("hex").slice(0, LENGTH);
}

function beginningOf({ messages }: Chat): string[] {
  const user = messages.findIndex(({ role }) => role === "user");
  return messages
    .slice(0, user + 1)
    .flatMap(({ role, parts }) => [
      role,
      ...parts.flatMap((part) => (part.kind === "text" ? part.text : [])),
    ]);
}
