// The heart of the server: take what has come in, let every model with work do a step, tell what it
// brought, and sleep when there is nothing to do.
import { type Mailbox, poll, receive } from "../engine/mailbox.ts";
import type { FromWorker, ToWorker } from "../engine/protocol.ts";
import type { Models } from "./models.ts";

export function loop(
  mailbox: Mailbox,
  models: Models,
  handle: (message: ToWorker) => "go on" | "stop",
): void {
  const reply = (message: FromWorker) => mailbox.port.postMessage(message);
  let isHeldUp = false;
  for (;;) {
    const restMs = models.busy ? (isHeldUp ? HELD_UP_MS : 0) : IDLE_MS;
    const message = restMs > 0 ? receive<ToWorker>(mailbox, restMs) : poll<ToWorker>(mailbox);
    if (message && handle(message) === "stop") return;
    if (message) continue; // All that has come in first: they may join one step.
    isHeldUp = true;
    for (const model of models) {
      const result = model.step();
      if (!result) continue;
      isHeldUp = false;
      reply({ kind: "step", ...result });
    }
    for (const name of models.dropIdle()) reply({ kind: "unloaded", model: name });
  }
}

/** How long it sleeps before it looks for models to drop. */
const IDLE_MS = 1000;

/** The same when everyone waits for a grammar that is being compiled. */
const HELD_UP_MS = 1;
