// Says what it finds in its mailbox each time that it wakes up, up to the message "end".
import { workerData } from "node:worker_threads";
import { type Mailbox, poll, receive } from "../../src/engine/mailbox.ts";

const mailbox = workerData as Mailbox;

for (let isOver = false; !isOver; ) {
  const messages = [receive(mailbox, Number.POSITIVE_INFINITY)];
  for (let next = poll(mailbox); next !== undefined; next = poll(mailbox)) messages.push(next);
  mailbox.port.postMessage(messages);
  isOver = messages.includes("end");
}
