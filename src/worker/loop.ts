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
  for (;;) {
    const message = models.busy ? poll<ToWorker>(mailbox) : receive<ToWorker>(mailbox, IDLE_MS);
    if (message && handle(message) === "stop") return;
    if (message) continue; // All that has come in first: they may join one step.
    for (const model of models) {
      const result = model.step();
      if (result) reply({ kind: "step", ...result });
    }
    for (const name of models.dropIdle()) reply({ kind: "unloaded", model: name });
  }
}

/** How long it sleeps before it looks for models to drop. */
const IDLE_MS = 1000;
