// The main thread's side of the engine: starts the Worker, asks it, stops it.
import { MessageChannel, Worker } from "node:worker_threads";
import { workerEntry } from "../worker-entry.ts";
import { type Mailbox, send } from "./mailbox.ts";
import type { EngineReport, FromWorker, ToWorker, WorkerSetup } from "./protocol.ts";

type Pending = { resolve(report: EngineReport): void; reject(error: Error): void };

export class EngineClient {
  readonly #worker: Worker;
  readonly #mailbox: Mailbox;
  readonly #pending = new Map<number, Pending>();
  readonly #ready = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<void>();
  #nextId = 1;
  #failure: Error | undefined;

  /** Returns when MLX is open; throws where it cannot be. */
  static async start(setup: WorkerSetup): Promise<EngineClient> {
    const client = new EngineClient(setup);
    await client.#ready.promise;
    return client;
  }

  private constructor(setup: WorkerSetup) {
    const { port1, port2 } = new MessageChannel();
    const arrivals = new SharedArrayBuffer(4);
    this.#mailbox = { port: port1, arrivals };
    this.#worker = new Worker(workerEntry, {
      workerData: { mailbox: { port: port2, arrivals }, setup },
      transferList: [port2],
    });
    port1.on("message", (message: FromWorker) => this.#receive(message));
    this.#worker.on("error", (error) => this.#end(error as Error));
    this.#worker.on("exit", () => this.#end(new Error("the engine has ended")));
  }

  inspect(): Promise<EngineReport> {
    const id = this.#nextId++;
    const { promise, resolve, reject } = Promise.withResolvers<EngineReport>();
    this.#pending.set(id, { resolve, reject });
    if (this.#failure) this.#settle(id)?.reject(this.#failure);
    else this.#send({ kind: "inspect", id });
    return promise;
  }

  /** Returns when the Worker has let go of MLX and ended. */
  async stop(): Promise<void> {
    this.#send({ kind: "stop" });
    await this.#ended.promise;
  }

  #send(message: ToWorker): void {
    send(this.#mailbox, message);
  }

  #receive(message: FromWorker): void {
    switch (message.kind) {
      case "ready":
        this.#ready.resolve();
        break;
      case "inspected":
        this.#settle(message.id)?.resolve(message.report);
        break;
      case "failed":
        this.#settle(message.id)?.reject(new Error(message.message));
        break;
      case "stopped":
        break;
    }
  }

  #settle(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    return pending;
  }

  /** Nothing that was asked stays unanswered. */
  #end(error: Error): void {
    this.#failure ??= error;
    this.#ready.reject(this.#failure);
    for (const { reject } of this.#pending.values()) reject(this.#failure);
    this.#pending.clear();
    this.#mailbox.port.close();
    this.#ended.resolve();
  }
}
