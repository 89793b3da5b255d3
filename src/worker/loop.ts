// The heart of the server: take what has come in, let every model with work do a step, tell what it
// brought, and sleep when there is nothing to do.
import type { FromWorker, ToWorker } from "../engine/protocol.ts";
import type { Models } from "./models.ts";

/** The next message, or undefined where none came in time. */
export type Next = (timeoutMs: number) => ToWorker | undefined;
export type Reply = (message: FromWorker) => void;

export function loop(
  models: Models,
  next: Next,
  handle: (message: ToWorker) => "go on" | "stop",
  reply: Reply,
): void {
  let isHeldUp = false;
  for (;;) {
    const message = next(models.busy ? (isHeldUp ? HELD_UP_MS : 0) : IDLE_MS);
    if (message && handle(message) === "stop") return;
    if (message) continue; // All that has come in first: they may join one step.
    isHeldUp = !stepAll(models, reply);
    for (const name of models.dropIdle()) reply({ kind: "unloaded", model: name });
  }
}

/** Every model with work does a step. False where none could. */
export function stepAll(models: Models, reply: Reply): boolean {
  let didOne = false;
  for (const model of models) {
    const result = model.step();
    if (!result) continue;
    didOne = true;
    reply({ kind: "step", ...result });
  }
  return didOne;
}

/** How long it sleeps before it looks for models to drop. */
const IDLE_MS = 1000;

/** The same when everyone waits for a grammar that is being compiled. */
const HELD_UP_MS = 1;
