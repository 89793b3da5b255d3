// What a chat begins with, as a header of its response: the same in all of its turns. A proxy before several servers
// learns by it which of them has the chat in its prefix cache.
import type { Chat, Conversation } from "../../conversation/conversation.ts";

export const PREFIX_HEADER = "x-prefix-hash";

/** Characters of it: chats are told apart, and nothing depends on it. */
const LENGTH = 32;

/** Of all messages up to the first of a user; undefined where there are none. */
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
