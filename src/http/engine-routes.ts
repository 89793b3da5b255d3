// The routes that show the engine at work and end requests.
import { CancelRequest, CancelResponse } from "../api/admin.ts";
import { EngineFeedEvent } from "../api/engine.ts";
import { cancelRequest } from "./admin.ts";
import { openAiEvents } from "./dialect.ts";
import { engineEvents } from "./engine-events.ts";
import { bodyErrors, type Route } from "./route.ts";

export const engineRoutes: readonly Route[] = [
  {
    method: "get",
    path: "/engine/events",
    summary:
      "What the engine does, as it does it: steps, requests, blocks, latencies; `?follow=<x-request-id>` shows its blocks",
    tag: "Server",
    mediaType: "text/event-stream",
    event: EngineFeedEvent,
    dialect: openAiEvents,
    errors: [400],
    access: "owner",
    isQuiet: true,
    isClosedByDrain: true,
    handler: engineEvents,
  },
  {
    method: "post",
    path: "/requests/cancel",
    summary: "End a request that runs or waits",
    tag: "Server",
    request: CancelRequest,
    response: CancelResponse,
    example: { id: "req-1" },
    errors: [...bodyErrors, 404],
    access: "owner",
    handler: cancelRequest,
  },
];
