// The table of pages.
import type { FC } from "hono/jsx/dom";
import { ChatPage } from "./chat/chat-page.tsx";

export type Page = {
  /** In the address, behind #. */
  name: string;
  title: string;
  isForOwner: boolean;
  View: FC;
};

export const pages: readonly Page[] = [
  { name: "chat", title: "Chat", isForOwner: false, View: ChatPage },
];
