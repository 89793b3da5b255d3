// The heart of the server: handle every message that has arrived, compute a step of every model with
// work, send what it produced, and sleep while there is nothing to compute.
import type { FromWorker, ToWorker } from "../engine/protocol.ts";
import type { ModelEngine } from "./model-engine.ts";
import type { Models } from "./models.ts";

export type Reply = (message: FromWorker) => void;

/** Where messages come from: the next one, or undefined where none arrives in time; and what is done. */
export type Inbox = {
  next(timeoutMs: number): ToWorker | undefined;
  handle(message: ToWorker): void;
};

/** Returns when it is told to stop. */
export function loop(models: Models, inbox: Inbox, reply: Reply): void {
  let hasStepped = true;
  while (handleArrived(inbox, waitMs(models, hasStepped))) hasStepped = stepAll(models, reply);
}

/** All that has arrived, as several requests may join one step. False at the message to stop. */
function handleArrived(inbox: Inbox, timeoutMs: number): boolean {
  for (let message = inbox.next(timeoutMs); message; message = inbox.next(0)) {
    if (message.kind === "stop") return false;
    inbox.handle(message);
  }
  return true;
}

/** Not at all between two steps; briefly while every request waits for its token mask. */
function waitMs(models: Models, hasStepped: boolean): number {
  if (!models.busy) return Number.POSITIVE_INFINITY;
  return hasStepped ? 0 : MASK_POLL_MS;
}

/** Whether any model had a step to compute. */
export function stepAll(models: Iterable<ModelEngine>, reply: Reply): boolean {
  let hasStepped = false;
  for (const model of models) {
    const result = model.step();
    if (!result) continue;
    hasStepped = true;
    reply({ kind: "step", ...result });
  }
  return hasStepped;
}

const MASK_POLL_MS = 1;
