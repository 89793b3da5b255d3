import { expect, test } from "bun:test";
import { MessageChannel, Worker } from "node:worker_threads";
import { type Mailbox, poll, receive, send } from "../../src/engine/mailbox.ts";

/** A thread of test/support, and the sender's side of its mailbox. */
function startReader(program: string): { worker: Worker; mailbox: Mailbox } {
  const { port1, port2 } = new MessageChannel();
  const arrivals = new SharedArrayBuffer(4);
  const worker = new Worker(new URL(`../support/${program}.ts`, import.meta.url), {
    workerData: { port: port2, arrivals },
    transferList: [port2],
  });
  return { worker, mailbox: { port: port1, arrivals } };
}

test("a thread that only sleeps and polls receives every message in order", async () => {
  const { worker, mailbox } = startReader("echo-worker");
  const echoes: unknown[] = [];
  const ended = Promise.withResolvers<void>();
  mailbox.port.on("message", (message) => {
    echoes.push(message);
    // Every other message goes when the reader is asleep again.
    if (typeof message === "number" && message < 200 && message % 2) send(mailbox, message + 1);
    if (typeof message === "number" && message < 200 && !(message % 2)) {
      setTimeout(send, 1, mailbox, message + 1);
    }
    if (message === 200) send(mailbox, "end");
    if (message === "end") ended.resolve();
  });
  send(mailbox, 1);
  await ended.promise;
  await worker.terminate();
  expect(echoes).toEqual([...Array.from({ length: 200 }, (_, i) => i + 1), "end"]);
});

test("a reader that sleeps finds all that is sent before the sender's turn ends", async () => {
  const { worker, mailbox } = startReader("gathering-worker");
  const gathered: unknown[] = [];
  const ended = Promise.withResolvers<void>();
  mailbox.port.on("message", (messages: unknown[]) => {
    gathered.push(messages);
    if (messages.includes("end")) ended.resolve();
    // The reader falls asleep meanwhile.
    else setTimeout(sendSlowly, 50, [1, 2, 3, "end"]);
  });
  const sendSlowly = (messages: readonly unknown[]) => {
    for (const message of messages) {
      send(mailbox, message);
      Bun.sleepSync(20);
    }
  };
  send(mailbox, 0);
  await ended.promise;
  await worker.terminate();
  expect(gathered).toEqual([[0], [1, 2, 3, "end"]]);
});

test("polling an empty mailbox returns at once", () => {
  const { port1, port2 } = new MessageChannel();
  const mailbox: Mailbox = { port: port2, arrivals: new SharedArrayBuffer(4) };
  expect(poll(mailbox)).toBeUndefined();
  port1.postMessage("hello");
  expect(poll<string>(mailbox)).toBe("hello");
  expect(poll(mailbox)).toBeUndefined();
  port1.close();
});

test("a reader that waits in vain returns with nothing", () => {
  const { port1, port2 } = new MessageChannel();
  const mailbox: Mailbox = { port: port2, arrivals: new SharedArrayBuffer(4) };
  expect(receive(mailbox, 5)).toBeUndefined();
  port1.postMessage("hello");
  expect(receive<string>(mailbox, 5)).toBe("hello");
  port1.close();
});
