// Runs one batch from its current status to its end. Every step is stored before the next begins, so that a batch
// resumes after a crash.
import { setTimeout as sleep } from "node:timers/promises";
import { type Batch, type BatchLine, isEnded, type LineFault, type Outcome } from "./batch.ts";
import { isDiskFull } from "./database.ts";
import { BatchInput, type InputRules, readBody } from "./input.ts";
import { answerText, type LineResponse, requestIdOf, writeOutput } from "./output.ts";
import { type BatchStore, SLICE } from "./store.ts";

export type LineRequest = {
  owner: string;
  endpoint: string;
  requestId: string;
  body: Uint8Array<ArrayBuffer>;
  signal: AbortSignal;
};

export type RunOptions = Omit<InputRules, "endpoint"> & {
  /** Answers a line: returns the response, or the delay before the line is retried. */
  answer(line: LineRequest): Promise<LineResponse | { retryMs: number }>;
  /** Called when a batch's status or counts change. */
  onProgress?: (batch: Batch) => void;
  /** Reports an error. With an id, that batch is then retried; without, the removal of expired files failed. */
  onError(id: string | undefined, error: unknown): void;
  /** Milliseconds before a retry; 5000 by default. */
  retryMs?: number;
};

/** Maximum attempts to answer a line, or to validate a batch, if the server fails. */
const MAX_TRIES = 3;
const RETRY_MS = 5000;

export class BatchRun {
  readonly owner: string;
  readonly #id: string;
  readonly #store: BatchStore;
  readonly #options: RunOptions;
  /** Called when lines may start: the batch is open, a line in flight has ended, or a pause is over. */
  readonly #onChange: () => void;
  /** Signal of the shutdown, after which nothing is stored. */
  readonly #stopping: AbortSignal;
  /** Aborted to end the current status early: on cancellation, expiry or shutdown. */
  readonly #interruption = new AbortController();
  readonly #inFlight = new Set<Promise<void>>();
  readonly #tries = new Map<number, number>();
  readonly #retryMs: number;
  /** Number of errors other than a full disk. */
  #errors = 0;
  /** Lines read from the store and not yet started, in order. */
  #next: BatchLine[] = [];
  /** Number of the last line that was read from the store. */
  #cursor = 0;
  /** Number of unanswered lines. */
  #left = 0;
  #onAnswered = () => {};
  #isOpen = false;
  #pause: NodeJS.Timeout | undefined;

  constructor(
    { id, owner }: Batch,
    store: BatchStore,
    options: RunOptions,
    stopping: AbortSignal,
    onChange: () => void,
  ) {
    this.owner = owner;
    this.#id = id;
    this.#store = store;
    this.#options = options;
    this.#retryMs = options.retryMs ?? RETRY_MS;
    this.#stopping = stopping;
    this.#onChange = onChange;
  }

  get inFlight(): number {
    return this.#inFlight.size;
  }

  get hasNext(): boolean {
    if (!this.#isOpen || this.#pause) return false;
    if (this.#next.length === 0) {
      this.#next = this.#store.unanswered(this.#id, this.#cursor, SLICE);
      this.#cursor = this.#next.at(-1)?.line ?? this.#cursor;
    }
    return this.#next.length > 0;
  }

  /** Starts the next line; requires `hasNext`. */
  startNext(): void {
    const line = this.#next.shift()!;
    const answering = this.#answer(line).catch((error: unknown) => {
      this.#again(line, this.#retryMs);
      this.#options.onError(this.#id, error);
    });
    this.#inFlight.add(answering);
    void answering.then(() => {
      this.#inFlight.delete(answering);
      this.#onChange();
    });
  }

  /** Ends the current status early; to be called when the batch's status changes or the server stops. */
  interrupt(): void {
    this.#interruption.abort();
  }

  /** Runs the batch; returns when it has ended or the server stops. */
  async run(): Promise<void> {
    const expiry = this.#armExpiry();
    while (!this.#stopping.aborted) {
      try {
        const batch = this.#store.batch(this.#id);
        // A batch that has ended may be missing, since the store keeps only the newest ended batches.
        if (!batch) break;
        this.#options.onProgress?.(batch);
        if (isEnded(batch)) break;
        await this.#step(batch);
      } catch (error) {
        if (this.#stopping.aborted) break;
        if (!isDiskFull(error)) this.#errors += 1;
        this.#options.onError(this.#id, error);
        await sleep(this.#retryMs, undefined, { signal: this.#stopping }).catch(() => {});
      }
    }
    clearTimeout(expiry);
    clearTimeout(this.#pause);
  }

  #armExpiry(): NodeJS.Timeout | undefined {
    const { expiresAt } = this.#store.batch(this.#id)!;
    if (expiresAt === undefined) return undefined;
    return setTimeout(() => this.interrupt(), Math.max(expiresAt * 1000 - Date.now(), 0));
  }

  /** Does the work of the batch's status, and advances it to the next one. */
  async #step(batch: Batch): Promise<void> {
    switch (batch.status) {
      case "validating":
        if (this.#errors >= MAX_TRIES) return await this.#fail([unvalidated]);
        return await this.#validate(batch);
      case "in_progress":
        await this.#answerLines(batch);
        // The batch may have been cancelled while its lines were answered.
        if (this.#is("in_progress")) this.#store.advance(this.#id, "finalizing");
        return;
      case "finalizing":
        return await this.#finish(batch, unansweredIn(batch) > 0 ? "expired" : "completed");
      case "cancelling":
        return await this.#finish(batch, "cancelled");
    }
  }

  #is(status: Batch["status"]): boolean {
    return !this.#stopping.aborted && this.#store.batch(this.#id)!.status === status;
  }

  async #validate({ endpoint, inputFile }: Batch): Promise<void> {
    await this.#removeLines();
    const { signal } = this.#interruption;
    const input = new BatchInput(this.#store.pathOf(inputFile), { ...this.#options, endpoint });
    let total = 0;
    let lines: BatchLine[] = [];
    const store = () => {
      this.#store.addLines(this.#id, lines);
      total += lines.length;
      lines = [];
    };
    try {
      for await (const line of input.lines(signal)) {
        lines.push(line);
        if (lines.length === SLICE) store();
      }
      if (!signal.aborted) store();
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    if (!this.#is("validating")) return await this.#removeLines();
    const { faults } = input;
    if (signal.aborted) {
      this.#store.advance(this.#id, "expired");
      await this.#clear();
    } else if (faults.length > 0) await this.#fail(faults);
    else {
      const counts = { total, completed: 0, failed: 0 };
      this.#store.advance(this.#id, "in_progress", { counts });
    }
  }

  async #fail(faults: readonly LineFault[]): Promise<void> {
    this.#store.advance(this.#id, "failed", { faults });
    await this.#clear();
  }

  /** Answers the lines; returns when all are answered or the batch is interrupted. */
  async #answerLines(batch: Batch): Promise<void> {
    this.#left = unansweredIn(batch);
    const { signal } = this.#interruption;
    if (this.#left === 0 || signal.aborted) return;
    const over = Promise.withResolvers<void>();
    this.#onAnswered = over.resolve;
    signal.addEventListener("abort", () => over.resolve(), { once: true });
    this.#isOpen = true;
    this.#onChange();
    await over.promise;
    this.#isOpen = false;
    await Promise.all(this.#inFlight);
  }

  async #answer(line: BatchLine): Promise<void> {
    const { signal } = this.#interruption;
    const response = await this.#respond(line, signal);
    if (signal.aborted) return;
    if ("retryMs" in response) return this.#again(line, response.retryMs);
    const tries = (this.#tries.get(line.line) ?? 0) + 1;
    this.#tries.set(line.line, tries);
    if (response.status >= 500 && tries < MAX_TRIES) return this.#again(line, 0);
    const text = answerText({ id: this.#id }, line, response);
    this.#store.answer(this.#id, line.line, text, response.status === 200);
    this.#tries.delete(line.line);
    this.#options.onProgress?.(this.#store.batch(this.#id)!);
    this.#left -= 1;
    if (this.#left === 0) this.#onAnswered();
  }

  async #respond(line: BatchLine, signal: AbortSignal) {
    const { inputFile } = this.#store.batch(this.#id)!;
    const body = await readBody(this.#store.pathOf(inputFile), line).catch(() => undefined);
    // The file may be missing, because another program has removed it from the folder.
    if (!body) return { status: 500, body: unreadable };
    return await this.#options.answer({
      owner: this.owner,
      endpoint: line.endpoint,
      requestId: requestIdOf({ id: this.#id }, line.line),
      body,
      signal,
    });
  }

  /** Requeues a line, ordered by line number; if `pauseMs` is above 0, also pauses the whole batch. */
  #again(line: BatchLine, pauseMs: number): void {
    const at = this.#next.findIndex((other) => other.line > line.line);
    this.#next.splice(at < 0 ? this.#next.length : at, 0, line);
    if (pauseMs === 0 || this.#pause) return;
    this.#pause = setTimeout(() => {
      this.#pause = undefined;
      this.#onChange();
    }, pauseMs);
  }

  async #finish(batch: Batch, outcome: Outcome): Promise<void> {
    const { files, ...written } = await writeOutput(this.#store, batch, outcome);
    if (this.#stopping.aborted) return;
    this.#store.advance(this.#id, outcome, written, files);
    await this.#clear();
  }

  /** Removes an ended batch's lines, and the files that were kept only for it. */
  async #clear(): Promise<void> {
    this.#store.removeUnused();
    await this.#removeLines();
  }

  async #removeLines(): Promise<void> {
    while (!this.#stopping.aborted && this.#store.removeLines(this.#id)) await Bun.sleep(0);
  }
}

function unansweredIn({ counts: { total, completed, failed } }: Batch): number {
  return total - completed - failed;
}

const unvalidated: LineFault = {
  code: "server_error",
  message: "The server failed to read the input file.",
  line: null,
  param: null,
};

const unreadable = JSON.stringify({
  error: {
    message: "The input file cannot be read.",
    type: "server_error",
    param: null,
    code: null,
  },
});
