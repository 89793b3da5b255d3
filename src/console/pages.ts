// The table of pages.
import type { FC } from "hono/jsx/dom";
import { ChatPage } from "./chat/chat-page.tsx";
import { EnginePage } from "./engine/engine-page.tsx";

export type Page = {
  /** In the address, behind #. */
  name: string;
  title: string;
  isForOwner: boolean;
  View: FC;
};

export const pages: readonly Page[] = [
  { name: "chat", title: "Chat", isForOwner: false, View: ChatPage },
  { name: "engine", title: "Engine", isForOwner: true, View: EnginePage },
];
