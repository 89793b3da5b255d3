// The connection to the engine's feed, and the view derived from it.
import type { EngineFeedEvent } from "../../api/owner/engine.ts";
import { ask, messageOf, serverEvents } from "../parts/server.ts";
import { Store } from "../parts/store.ts";
import { after, type EngineView, newStory } from "./engine-view.ts";

const RECONNECT_MS = 1000;

const nothing: EngineView = {
  connection: "connecting",
  problem: "",
  state: undefined,
  steps: [],
  ended: [],
  lost: 0,
  story: undefined,
};

export const engine = new Store<EngineView>(nothing);

let controller: AbortController | undefined;

/** Listens until `closeFeed`, and reconnects after a delay if the connection is lost. */
export function openFeed(): void {
  const before = controller;
  const own = new AbortController();
  controller = own;
  const follow = engine.value.story?.id;
  const query = follow === undefined ? "" : `?follow=${encodeURIComponent(follow)}`;
  const listen = async () => {
    const response = await ask(`/engine/events${query}`, { signal: own.signal });
    // The previous connection is closed only now that the new one is open, so that no event is missed.
    before?.abort();
    engine.set({ ...engine.value, connection: "open", problem: "" });
    for await (const { data } of serverEvents(response)) {
      engine.set(after(engine.value, JSON.parse(data) as EngineFeedEvent, performance.now()));
    }
    throw new Error("the server has closed the connection");
  };
  listen().catch((error: unknown) => {
    before?.abort();
    if (own.signal.aborted) return;
    engine.set({ ...engine.value, connection: "closed", problem: messageOf(error) });
    setTimeout(() => controller === own && openFeed(), RECONNECT_MS);
  });
}

export function closeFeed(): void {
  controller?.abort();
  controller = undefined;
}

/** Follows a request: highlights its blocks and logs its steps. With undefined, follows none. */
export function follow(id: string | undefined): void {
  const story = id === undefined ? undefined : newStory(id, engine.value, performance.now());
  engine.set({ ...engine.value, story });
  if (controller) openFeed();
}
