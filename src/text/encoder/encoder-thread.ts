// The encoder thread: renders and encodes texts that are too long for the main thread. API keys get time slices of a
// few milliseconds round-robin, so that no key waits for another key's long text.
import { parentPort } from "node:worker_threads";
import { TemplateError } from "../template/template.ts";
import { openTextModel, type TextModel, type TextSource } from "../text-model.ts";
import { TokenIdBuffer } from "../tokenizer/token-ids.ts";
import { TooLongError } from "../tokenizer/tokenizer.ts";
import { type EncodedWork, type EncodeWork, encodeWork, sizeOf } from "./encode-work.ts";
import type { EncodeFailure, FromEncoder, ToEncoder } from "./encoder-protocol.ts";
import { JsonTextError, parseJson } from "./json-text.ts";
import { putBack, takeOut } from "./long-strings.ts";

type Job = { id: number; key: string; ids: TokenIdBuffer; steps: Generator<void, EncodedWork> };

const SLICE_MS = 10;
/** RSS growth that forces a garbage collection; otherwise garbage reaches many times the size of the text. */
const MAX_GARBAGE_BYTES = 16 * 2 ** 20;
const MAX_MODELS = 4;

const main = parentPort!;
/** Jobs by API key, in round-robin order: the first key runs next. A key without jobs has no entry. */
const jobs = new Map<string, Job[]>();
/** Long strings received ahead of the message that they belong to. */
let texts: string[] = [];
/** Opened models in LRU order, the most recently used last. */
const models = new Map<string, TextModel>();
/** Minimum RSS since the last collection. */
let leastBytes = Number.POSITIVE_INFINITY;
let arrival = Promise.withResolvers<void>();

main.on("message", (message: ToEncoder) => {
  if (message.kind === "forget") forget(message.path);
  else if (message.kind === "cancel") cancel(message.id);
  else if (message.kind === "parse") parse(message);
  else if (message.kind === "text") texts.push(message.text);
  else add(message);
});

for (;;) {
  const [next] = jobs.values();
  if (next) {
    runSlice(next[0]!);
    collectGarbage();
  } else {
    arrival = Promise.withResolvers();
    await arrival.promise;
  }
  // Lets the event loop receive messages.
  await new Promise(setImmediate);
}

function add({ id, key, source, work: sent }: ToEncoder & { kind: "encode" }): void {
  const work = putBack(sent, texts) as EncodeWork;
  texts = [];
  const ids = new TokenIdBuffer(sizeOf(work));
  const job: Job = { id, key, ids, steps: stepsOf() };
  const others = jobs.get(key);
  if (others) others.push(job);
  else jobs.set(key, [job]);
  arrival.resolve();

  function* stepsOf() {
    return yield* encodeWork(opened(source), work, ids);
  }
}

/** Parses immediately: a megabyte takes less than a time slice. */
function parse({ id, bytes }: ToEncoder & { kind: "parse" }): void {
  try {
    const long: string[] = [];
    const value = takeOut(parseJson(bytes), long);
    for (const text of long) reply({ kind: "text", text });
    reply({ kind: "parsed", id, value });
  } catch (error) {
    reply({ kind: "failed", id, tokens: 0, failure: failureOf(error) });
  }
  collectGarbage();
}

function runSlice(job: Job): void {
  const end = performance.now() + SLICE_MS;
  try {
    for (;;) {
      const { done, value } = job.steps.next();
      if (done) {
        remove(job);
        const ids = job.ids.take();
        reply({ kind: "encoded", id: job.id, ids, ...value }, [ids.buffer]);
        return;
      }
      if (performance.now() > end) break;
    }
    requeue(job);
  } catch (error) {
    fail(job, failureOf(error));
  }
}

/** Moves the job's key behind all other keys, and the job behind the other jobs of that key. */
function requeue(job: Job): void {
  remove(job);
  const others = jobs.get(job.key) ?? [];
  jobs.delete(job.key);
  jobs.set(job.key, [...others, job]);
}

function collectGarbage(): void {
  const bytes = process.memoryUsage.rss();
  leastBytes = Math.min(leastBytes, bytes);
  if (bytes < leastBytes + MAX_GARBAGE_BYTES) return;
  Bun.gc(true);
  // The allocator returns freed memory to the system a little later, so RSS is not read again here.
  leastBytes = bytes;
}

function cancel(id: number): void {
  const job = [...jobs.values()].flat().find((each) => each.id === id);
  if (job) fail(job, { kind: "cancelled" });
}

function fail(job: Job, failure: EncodeFailure): void {
  remove(job);
  reply({ kind: "failed", id: job.id, tokens: job.ids.length, failure });
}

function remove(job: Job): void {
  const left = jobs.get(job.key)!.filter((each) => each !== job);
  if (left.length > 0) jobs.set(job.key, left);
  else jobs.delete(job.key);
}

function reply(message: FromEncoder, transfer: ArrayBuffer[] = []): void {
  main.postMessage(message, transfer);
}

function failureOf(error: unknown): EncodeFailure {
  if (error instanceof TooLongError) return { kind: "too_long" };
  if (error instanceof JsonTextError) return { kind: "json", fault: error.fault };
  if (error instanceof TemplateError) {
    return { kind: "template", fault: error.fault, message: error.message };
  }
  return { kind: "other", message: error instanceof Error ? error.message : String(error) };
}

function opened(source: TextSource): TextModel {
  const name = JSON.stringify([source.path, source.chatTemplate]);
  const model = models.get(name) ?? openTextModel(source.path, source);
  models.delete(name);
  models.set(name, model);
  const [oldest] = models.keys();
  if (models.size > MAX_MODELS) models.delete(oldest!);
  return model;
}

function forget(path: string): void {
  for (const name of models.keys()) if (JSON.parse(name)[0] === path) models.delete(name);
}
