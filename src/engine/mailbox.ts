// Messages to a thread that never returns to its event loop. They go through a port; a counter in shared
// memory signals their arrival, and an idle reader sleeps on the counter.
import { type MessagePort, receiveMessageOnPort } from "node:worker_threads";

export type Mailbox = { port: MessagePort; arrivals: SharedArrayBuffer };

/** Sends a message, and wakes a sleeping reader in a microtask, so that requests sent together join one step. */
export function send(mailbox: Mailbox, message: unknown, transfer: MessagePort[] = []): void {
  mailbox.port.postMessage(message, transfer);
  queueMicrotask(() => {
    const arrivals = new Int32Array(mailbox.arrivals);
    Atomics.add(arrivals, 0, 1);
    Atomics.notify(arrivals, 0);
  });
}

/** Returns the next message, or undefined if there is none. */
export function poll<T>(mailbox: Mailbox): T | undefined {
  return receiveMessageOnPort(mailbox.port)?.message as T | undefined;
}

/** Waits for the next message; returns undefined if none arrives in time. */
export function receive<T>(mailbox: Mailbox, timeoutMs: number): T | undefined {
  const arrivals = new Int32Array(mailbox.arrivals);
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    // The counter is loaded before the poll: a message that arrives in between changes it, so the wait returns at
    // once.
    const seen = Atomics.load(arrivals, 0);
    const message = poll<T>(mailbox);
    const left = deadline - performance.now();
    if (message !== undefined || left <= 0) return message;
    Atomics.wait(arrivals, 0, seen, left);
  }
}
