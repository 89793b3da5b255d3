// Publishes the engine's activity to watching clients. Without clients, nothing is queried or built. Steps are
// collected and sent a few times a second, serialized once for all clients; a client that does not read loses the
// oldest events and is told how many. Slow clients delay no one.
import type { StateEvent, StepsEvent } from "../../api/owner/engine.ts";
import type { EngineClient } from "../../engine/client.ts";
import type { StepReport } from "../../engine/protocol.ts";
import { namedEvent } from "./dialect.ts";
import type { Outcome } from "./metrics.ts";
import type { RequestRecord } from "./request-record.ts";

const STEPS_MS = 100;
/** Maximum steps per event, and maximum ended requests per event. */
const MAX_STEPS = 100;
/** Ticks of the timer per state event; each tick sends at most one step event. */
const STATE_EVERY = 5;
/** Maximum unread step events per client. */
const MAX_BACKLOG = 20;

type Watched = Pick<EngineClient, "watch" | "nameOf">;

export class EngineFeed {
  readonly #engine: Watched;
  readonly #stateOf: (followed: readonly string[]) => Promise<StateEvent>;
  readonly #stepsMs: number;
  readonly #listeners = new Set<FeedListener>();
  #next = emptyEvent();
  /** Index of each request in the next event's list of requests, by the request's id in the engine. */
  readonly #indices = new Map<number, number>();
  /** Rows (request, tokens, prefill) of each model's last step; a step that repeats them is sent without rows. */
  readonly #lastRows = new Map<string, Int32Array>();
  #timer: NodeJS.Timeout | undefined;
  #ticks = 0;
  #isAsking = false;

  constructor(
    engine: Watched,
    stateOf: (followed: readonly string[]) => Promise<StateEvent>,
    stepsMs = STEPS_MS,
  ) {
    this.#engine = engine;
    this.#stateOf = stateOf;
    this.#stepsMs = stepsMs;
  }

  /** Adds a client. `followed`: the request whose KV blocks the client wants to see. */
  listen(followed: string | undefined): FeedListener {
    const listener = new FeedListener(followed, () => this.#leave(listener));
    this.#listeners.add(listener);
    if (this.#listeners.size === 1) {
      this.#engine.watch(true);
      this.#timer = setInterval(() => this.#tick(), this.#stepsMs);
    }
    this.#tellState();
    return listener;
  }

  #leave(listener: FeedListener): void {
    if (!this.#listeners.delete(listener) || this.#listeners.size > 0) return;
    clearInterval(this.#timer);
    this.#engine.watch(false);
    this.#begin();
  }

  step({ model, step, ms, rowTokens, preempted, running, waiting }: StepReport): void {
    if (this.#listeners.size === 0 || !rowTokens) return;
    const { requests, steps } = this.#next;
    if (steps.length === MAX_STEPS) {
      this.#next.left_out += 1;
      return;
    }
    const isRepeated = areEqual(rowTokens, this.#lastRows.get(model));
    if (!isRepeated) this.#lastRows.set(model, rowTokens);
    const rows = isRepeated ? undefined : this.#wireRows(rowTokens, requests);
    steps.push({ model, step, ms: Math.round(ms * 100) / 100, rows, preempted, running, waiting });
  }

  #wireRows(rowTokens: Int32Array, requests: string[]): number[] {
    const rows = new Array<number>(rowTokens.length);
    for (let at = 0; at < rows.length; at++) {
      rows[at] = at % 3 === 0 ? this.#indexOf(rowTokens[at]!, requests) : rowTokens[at]!;
    }
    return rows;
  }

  /** Returns a request's index in the event's list of requests; appends the request if it is new. */
  #indexOf(id: number, requests: string[]): number {
    return this.#indices.getOrInsertComputed(
      id,
      () => requests.push(this.#engine.nameOf(id) ?? String(id)) - 1,
    );
  }

  #begin(): void {
    this.#next = emptyEvent();
    this.#indices.clear();
    this.#lastRows.clear();
  }

  ended(record: RequestRecord, outcome: Outcome, ms: number): void {
    const { ended } = this.#next;
    if (this.#listeners.size === 0 || ended.length === MAX_STEPS) return;
    const { id, model, tier, finish, error, promptTokens, cachedTokens, completionTokens } = record;
    ended.push({
      ...{ id, model, tier, outcome, finish, error },
      prompt_tokens: promptTokens,
      cached_tokens: cachedTokens,
      completion_tokens: completionTokens,
      queue_ms: record.queueMs,
      ttft_ms: record.ttftMs,
      ms,
    });
  }

  #tick(): void {
    this.#ticks += 1;
    if (this.#ticks % STATE_EVERY === 0) this.#tellState();
    const { steps, ended, left_out } = this.#next;
    if (steps.length + ended.length === 0) return;
    const text = namedEvent(this.#next);
    this.#begin();
    for (const listener of this.#listeners) listener.addSteps(text, steps.length + left_out);
  }

  /** Queries the state. Only one query runs at a time, because a busy engine answers only between steps. */
  #tellState(): void {
    if (this.#isAsking) return;
    this.#isAsking = true;
    const followed = [...this.#listeners].flatMap((listener) => listener.followed ?? []);
    this.#stateOf(followed)
      .then((state) => {
        const text = namedEvent(state);
        for (const listener of this.#listeners) listener.setState(text);
      })
      // The query fails while the engine is restarting.
      .catch(() => {})
      .finally(() => {
        this.#isAsking = false;
      });
  }
}

export class FeedListener {
  readonly followed: string | undefined;
  readonly #onClose: () => void;
  #steps: { text: string; count: number }[] = [];
  #state: string | undefined;
  #lost = 0;
  #arrival = Promise.withResolvers<void>();
  #isClosed = false;

  constructor(followed: string | undefined, onClose: () => void) {
    this.followed = followed;
    this.#onClose = onClose;
  }

  addSteps(text: string, count: number): void {
    if (this.#steps.length === MAX_BACKLOG) this.#lost += this.#steps.shift()!.count;
    this.#steps.push({ text, count });
    this.#arrival.resolve();
  }

  /** Replaces the state that the client has not read yet. */
  setState(text: string): void {
    this.#state = text;
    this.#arrival.resolve();
  }

  /** Returns all unread events; undefined at the end. */
  async read(): Promise<string | undefined> {
    await this.#arrival.promise;
    if (this.#isClosed) return undefined;
    this.#arrival = Promise.withResolvers();
    const lost = this.#lost > 0 ? namedEvent({ type: "lost", steps: this.#lost }) : "";
    const text = lost + this.#steps.map((each) => each.text).join("") + (this.#state ?? "");
    this.#steps = [];
    this.#state = undefined;
    this.#lost = 0;
    return text;
  }

  close(): void {
    this.#isClosed = true;
    this.#arrival.resolve();
    this.#onClose();
  }
}

function areEqual(rows: Int32Array, others: Int32Array | undefined): boolean {
  if (rows.length !== others?.length) return false;
  for (let at = 0; at < rows.length; at++) if (rows[at] !== others[at]) return false;
  return true;
}

function emptyEvent(): StepsEvent {
  return { type: "steps", requests: [], steps: [], ended: [], left_out: 0 };
}
