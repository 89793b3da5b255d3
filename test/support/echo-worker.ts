// A thread that never returns to its event loop: it sends back what it receives, until "end".
import { workerData } from "node:worker_threads";
import { type Mailbox, receive } from "../../src/engine/mailbox.ts";

const mailbox = workerData as Mailbox;
for (;;) {
  const message = receive(mailbox, 1000);
  if (message === undefined) continue;
  mailbox.port.postMessage(message);
  if (message === "end") break;
}
mailbox.port.close();
