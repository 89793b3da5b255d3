// The engine's main loop: handle every message, step every model, sleep if no model could step.
import type { ToWorker } from "../engine/protocol.ts";
import type { ModelEngine } from "./model-engine.ts";
import type { Models } from "./models.ts";

export type Inbox = {
  /** Waits for the next message; returns undefined if none arrives in time. */
  next(timeoutMs: number): ToWorker | undefined;
  handle(message: ToWorker): void;
};

/** Polling interval while every sequence waits for its token mask. */
const MASK_POLL_MS = 1;

/** Runs the loop until the stop message. */
export function loop(models: Models, inbox: Inbox): void {
  let sleepMs = 0;
  while (handleAll(inbox, sleepMs)) sleepMs = stepAll(models) ? 0 : idleMs(models);
}

/** Handles all messages before a step, so that their requests join it. Returns false at the stop message. */
function handleAll(inbox: Inbox, timeoutMs: number): boolean {
  for (let message = inbox.next(timeoutMs); message; message = inbox.next(0)) {
    if (message.kind === "stop") return false;
    inbox.handle(message);
  }
  return true;
}

/** How long to wait for a message after no model could step; short if token masks are awaited. */
function idleMs(models: Models): number {
  return models.busy ? MASK_POLL_MS : models.idleMs;
}

/** Computes one step of every model with work. Returns false if none had work or all rows were stalled. */
export function stepAll(models: Iterable<ModelEngine>): boolean {
  let hasStepped = false;
  for (const model of models) hasStepped = model.step() || hasStepped;
  return hasStepped;
}
