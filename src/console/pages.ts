// The table of pages.
import type { FC } from "hono/jsx/dom";
import { BenchPage } from "./bench-page.tsx";
import { ChatPage } from "./chat/chat-page.tsx";
import { EnginePage } from "./engine/engine-page.tsx";
import { KeysPage } from "./keys/keys-page.tsx";
import { ModelsPage } from "./models/models-page.tsx";

export type Page = {
  /** Name of the page in the address, after the #. */
  name: string;
  title: string;
  isForOwner: boolean;
  View: FC;
};

export const pages: readonly Page[] = [
  { name: "chat", title: "Chat", isForOwner: false, View: ChatPage },
  { name: "engine", title: "Engine", isForOwner: true, View: EnginePage },
  { name: "models", title: "Models", isForOwner: true, View: ModelsPage },
  { name: "keys", title: "Keys and batches", isForOwner: true, View: KeysPage },
  { name: "bench", title: "Bench", isForOwner: true, View: BenchPage },
];
