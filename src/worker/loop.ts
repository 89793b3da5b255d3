// The heart of the server: handle every message that has arrived, compute a step of every model with
// work, which sends what it has brought, and sleep while there is nothing to compute.
import type { ToWorker } from "../engine/protocol.ts";
import type { ModelEngine } from "./model-engine.ts";
import type { Models } from "./models.ts";

export type Inbox = {
  /** The next message, or undefined if none arrives in time. */
  next(timeoutMs: number): ToWorker | undefined;
  handle(message: ToWorker): void;
};

/** How often the loop looks for a token mask that every request waits for. */
const MASK_POLL_MS = 1;

/** Returns at the message to stop. */
export function loop(models: Models, inbox: Inbox): void {
  let hasStepped = true;
  while (handleMessages(inbox, sleepMs(models, hasStepped))) hasStepped = stepAll(models);
}

/** Handles all that have arrived, so that several requests join one step. False at the message to stop. */
function handleMessages(inbox: Inbox, timeoutMs: number): boolean {
  for (let message = inbox.next(timeoutMs); message; message = inbox.next(0)) {
    if (message.kind === "stop") return false;
    inbox.handle(message);
  }
  return true;
}

/** How long to wait for a message: not at all between two steps, and without end while no model is busy. */
function sleepMs(models: Models, hasStepped: boolean): number {
  if (!models.busy) return models.idleMs;
  return hasStepped ? 0 : MASK_POLL_MS;
}

/** Computes one step of every model with work. False if none could: all rows wait for their token mask. */
export function stepAll(models: Iterable<ModelEngine>): boolean {
  let hasStepped = false;
  for (const model of models) hasStepped = model.step() || hasStepped;
  return hasStepped;
}
