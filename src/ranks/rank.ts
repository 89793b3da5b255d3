// The main thread of a rank's process: connects to the server, sends heartbeats, and forwards messages to the compute
// thread. The process ends with the connection, because the compute thread may hang in a collective forever.
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import { MessageChannel, Worker } from "node:worker_threads";
import { send } from "../engine/mailbox.ts";
import type { WorkerSetup } from "../engine/protocol.ts";
import { rankEntry } from "../worker-entry.ts";
import { Channel, isProof, proofOf } from "./channel.ts";
import type { RankProcess } from "./group.ts";
import { ALIVE_MS, type ToRankProcess } from "./protocol.ts";
import type { FromRankThread } from "./thread.ts";

/** Runs the rank; returns the reason once the connection has ended. */
export async function runRank(
  { rank, server, secret }: RankProcess,
  setup: WorkerSetup,
  version: string,
): Promise<string> {
  const ended = Promise.withResolvers<string>();
  const [hostname, port] = splitAddress(server);
  const nonce = randomBytes(16).toString("hex");
  let thread: ReturnType<typeof startThread> | undefined;
  const channel: Channel = new Channel(connect({ host: hostname, port }), {
    onJson: (json) => {
      const message = json as ToRankProcess;
      switch (message.kind) {
        case "challenge": {
          const proof = proofOf(secret, "rank", rank, message.nonce);
          channel.sendJson({ kind: "hello", rank, nonce, proof, version });
          break;
        }
        case "welcome":
          channel.isProved = isProof(message.proof, proofOf(secret, "server", rank, nonce));
          if (!channel.isProved) channel.close("the server has a different secret");
          break;
        case "refused":
          ended.resolve(message.reason);
          break;
        case "form":
          if (channel.isProved) thread ??= startThread(setup, channel);
          break;
      }
    },
    onBytes: (bytes) => thread?.send(bytes),
    onClose: (reason) => ended.resolve(reason),
  });
  const timer = setInterval(() => {
    if (channel.isProved) channel.sendJson({ kind: "alive" });
  }, ALIVE_MS);
  const reason = await ended.promise;
  clearInterval(timer);
  return reason;
}

function startThread(setup: WorkerSetup, channel: Channel) {
  const { port1, port2 } = new MessageChannel();
  const mailbox = { port: port1, arrivals: new SharedArrayBuffer(4) };
  const worker = new Worker(rankEntry, {
    workerData: { mailbox: { port: port2, arrivals: mailbox.arrivals }, setup },
    transferList: [port2],
  });
  const fail = (reason: string) => {
    channel.sendJson({ kind: "failed", reason });
  };
  worker.on("error", (error) => fail((error as Error).message));
  worker.on("exit", () => fail("its compute thread has ended"));
  port1.on("message", (message: FromRankThread) => {
    if (message instanceof Uint8Array) channel.sendBytes(message);
    else channel.sendJson(message);
  });
  return { send: (bytes: Uint8Array) => send(mailbox, bytes) };
}

/** Splits host:port; an IPv6 host is in brackets. */
function splitAddress(address: string): [host: string, port: number] {
  const at = address.lastIndexOf(":");
  return [address.slice(0, at).replace(/^\[|\]$/g, ""), Number(address.slice(at + 1))];
}
