// Encodes texts and chats without blocking the event loop: short ones immediately, long ones on the encoder thread,
// which starts on first use.
import { Worker } from "node:worker_threads";
import type { ErrorAnswer } from "../../error-answer.ts";
import { encoderEntry } from "../../worker-entry.ts";
import { TemplateError } from "../template/template.ts";
import type { TextModel } from "../text-model.ts";
import { finish } from "../tokenizer/token-ids.ts";
import { TooLongError } from "../tokenizer/tokenizer.ts";
import { type EncodedWork, type EncodeWork, encodeWork, sizeOf } from "./encode-work.ts";
import type { EncodeFailure, FromEncoder, ToEncoder } from "./encoder-protocol.ts";
import { JsonTextError } from "./json-text.ts";
import { putBack, takeOut } from "./long-strings.ts";

/** The client that the work is done for. */
export type Client = {
  /** The API key, for fair scheduling between keys. */
  key: string;
  /** Aborts the work, which then rejects with the signal's reason. */
  signal: AbortSignal;
  /** Called exactly once, with the number of tokens encoded, also on failure. */
  charge(tokens: number): void;
};

/** Token ids of each text; a chat is one text. */
export type Encoded = { prompts: Uint32Array[] } & Pick<EncodedWork, "ending" | "heads">;

/** The queue of characters to encode is full. */
export class EncoderBusyError extends Error {
  override name = "EncoderBusyError";
  readonly answer: ErrorAnswer = {
    status: 429,
    message: "Too much text is being tokenized.",
    code: "queue_full",
  };

  constructor() {
    super("the queue of text to encode is full");
  }
}

/** The encoder thread has exited, or cannot open the model. */
export class EncoderThreadError extends Error {
  override name = "EncoderThreadError";
  readonly answer: ErrorAnswer = {
    status: 503,
    message: "Long texts cannot be tokenized at the moment.",
  };
}

/** Maximum characters of work that is encoded on the main thread: a few milliseconds. */
const SHORT = 2 ** 13;
/** Maximum queued characters, in total and per key. */
const MAX_WAITING = 2 ** 27;
const MAX_WAITING_OF_KEY = 2 ** 26;

/** Characters of work above which the main thread starts a concurrent garbage collection once the work is sent. */
const COLLECTED_ABOVE = 2 ** 20;

type Job = Client & {
  size: number;
  maxTokens: number;
  resolve(result: unknown): void;
  reject(error: unknown): void;
};

export class Encoder {
  #thread: Worker | undefined;
  readonly #jobs = new Map<number, Job>();
  /** Long strings received ahead of the message that they belong to. */
  readonly #texts: string[] = [];
  #nextId = 0;

  async encode(model: TextModel, work: EncodeWork, client: Client): Promise<Encoded> {
    const size = sizeOf(work);
    if (size > SHORT) return await this.#send(model, work, size, client);
    const ids: number[] = [];
    try {
      const encoded = finish(encodeWork(model, work, ids));
      return split(Uint32Array.from(ids), encoded);
    } finally {
      client.charge(ids.length);
    }
  }

  /** Parses JSON that would block the event loop. Transfers the bytes: they are detached afterwards. */
  async parse(bytes: Uint8Array<ArrayBuffer>, client: Client): Promise<unknown> {
    const post = (id: number) => this.#post({ kind: "parse", id, bytes }, [bytes.buffer]);
    return await this.#ask(post, { ...client, size: bytes.length, maxTokens: 0 });
  }

  /** Drops the thread's copy of an unloaded model. */
  forget(path: string): void {
    if (this.#thread) this.#post({ kind: "forget", path });
  }

  async stop(): Promise<void> {
    await this.#thread?.terminate();
  }

  async #send(
    { source }: TextModel,
    work: EncodeWork,
    size: number,
    client: Client,
  ): Promise<Encoded> {
    const { key } = client;
    const post = (id: number) => {
      const long: string[] = [];
      const rest = takeOut(work, long);
      for (const text of long) this.#post({ kind: "text", text });
      this.#post({ kind: "encode", id, key, source, work: rest });
    };
    const answer = this.#ask(post, { ...client, size, maxTokens: work.maxTokens });
    // The thread has the text now; the main thread's copies are garbage.
    if (size > COLLECTED_ABOVE) Bun.gc(false);
    return (await answer) as Encoded;
  }

  async #ask(post: (id: number) => void, job: Omit<Job, "resolve" | "reject">): Promise<unknown> {
    const { signal } = job;
    signal.throwIfAborted();
    this.#checkRoom(job.key, job.size);
    const id = this.#nextId++;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const onAbort = () => {
      this.#post({ kind: "cancel", id });
      reject(signal.reason);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    this.#jobs.set(id, { ...job, resolve, reject });
    post(id);
    return await promise.finally(() => signal.removeEventListener("abort", onAbort));
  }

  /** Throws EncoderBusyError if the job does not fit in the queue. An empty queue takes a job of any size. */
  #checkRoom(key: string, size: number): void {
    const waiting = this.#jobs.values().reduce((sum, job) => sum + job.size, 0);
    const own = this.#jobs.values().reduce((sum, job) => sum + (job.key === key ? job.size : 0), 0);
    const isFull = waiting > 0 && waiting + size > MAX_WAITING;
    if (isFull || (own > 0 && own + size > MAX_WAITING_OF_KEY)) throw new EncoderBusyError();
  }

  #post(message: ToEncoder, transfer: ArrayBuffer[] = []): void {
    this.#thread ??= this.#start();
    this.#thread.postMessage(message, transfer);
  }

  #start(): Worker {
    const thread = new Worker(encoderEntry);
    const onEnd = () => {
      if (this.#thread !== thread) return;
      this.#thread = undefined;
      this.#texts.length = 0;
      for (const id of this.#jobs.keys()) {
        this.#end(id, 0)?.reject(new EncoderThreadError("the encoder thread has ended"));
      }
    };
    thread.on("message", (message: FromEncoder) => this.#receive(message));
    thread.on("error", onEnd);
    thread.on("exit", onEnd);
    // The thread must not keep the process alive.
    thread.unref();
    return thread;
  }

  #receive(message: FromEncoder): void {
    if (message.kind === "encoded") {
      const { ids } = message;
      this.#end(message.id, ids.length)?.resolve(split(ids, message));
    } else if (message.kind === "text") {
      this.#texts.push(message.text);
    } else if (message.kind === "parsed") {
      const value = putBack(message.value, this.#texts.splice(0));
      this.#end(message.id, 0)?.resolve(value);
    } else {
      const job = this.#end(message.id, message.tokens);
      job?.reject(errorOf(message.failure, job.maxTokens));
    }
  }

  #end(id: number, tokens: number): Job | undefined {
    const job = this.#jobs.get(id);
    this.#jobs.delete(id);
    job?.charge(tokens);
    return job;
  }
}

function split(ids: Uint32Array, { ends, ending, heads }: EncodedWork): Encoded {
  return { prompts: ends.map((end, i) => ids.subarray(ends[i - 1] ?? 0, end)), ending, heads };
}

function errorOf(failure: EncodeFailure, maxTokens: number): Error {
  switch (failure.kind) {
    case "too_long":
      return new TooLongError(maxTokens);
    case "json":
      return new JsonTextError(failure.fault);
    case "template":
      return new TemplateError(failure.fault, failure.message);
    case "cancelled":
      return new EncoderThreadError("cancelled");
    case "other":
      return new EncoderThreadError(failure.message);
  }
}
