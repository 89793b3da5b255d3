// The routes of the console.
import { ConsoleSession } from "../../api/owner/console.ts";
import type { Route } from "../frame/route.ts";
import { consoleAsset, consolePage, consoleSession } from "./console.ts";

const open = { method: "get", tag: "Server", access: "open", isQuiet: true } as const;

export const consoleRoutes: readonly Route[] = [
  {
    ...open,
    path: "/",
    summary:
      "The console, for browsers; a liveness check for others, such as Anthropic's clients, which send HEAD first",
    mediaType: "text/html",
    handler: consolePage,
  },
  {
    ...open,
    path: "/console.js",
    summary: "The console's script",
    mediaType: "text/javascript",
    handler: consoleAsset("script", "text/javascript"),
  },
  {
    ...open,
    path: "/console.css",
    summary: "The console's style",
    mediaType: "text/css",
    handler: consoleAsset("style", "text/css"),
  },
  {
    ...open,
    path: "/console.json",
    summary: "Whether a key is needed, and the identity of the request's key",
    response: ConsoleSession,
    handler: consoleSession,
  },
];
