// Whose prompt is computed next: of the waiting sequences and of the running ones whose prompts are not complete.
//
// A flow is what one client (an API key) sends at one level (LOW 0, NORMAL 1, HIGH 2): first come, first
// served. Between flows the order is
//
//   1. the higher level. While prompts of higher levels are computed and none of its own, a flow rises by a
//      level every ten seconds, up to HIGH; a step that computes one takes back a tenth of that time;
//   2. the client that was served fewer tokens, prompts and answers together, of all its levels;
//   3. the flow that has waited for longer.
//
// A client that had no prompts to compute continues at the least count of those that have: idleness earns
// nothing. No flow starves: the levels above it can pass it over for 20 seconds, then it is at the top. There the
// client with the fewest tokens goes first, only service raises a count, and each other client can be served no
// more than the difference before its turn.
//
// Preemption follows another order, that of standings: see `compare`.

export type Priority = "LOW" | "NORMAL" | "HIGH";

export const levels: Record<Priority, number> = { LOW: 0, NORMAL: 1, HIGH: 2 };

const MS_PER_LEVEL = 10_000;

/** Of the time that a flow has waited, what is left after a step that computes one of its prompts. */
const KEPT = 0.9;

export class Client<T> {
  readonly name: string;
  readonly flows: Readonly<Record<Priority, Flow<T>>>;
  /** Tokens computed for it. */
  served = 0;
  /** Sequences that wait or run. */
  active = 0;

  constructor(name: string) {
    this.name = name;
    const flow = (level: number) => ({ client: this, level, waiting: [], sinceMs: -1 });
    this.flows = { LOW: flow(levels.LOW), NORMAL: flow(levels.NORMAL), HIGH: flow(levels.HIGH) };
  }
}

export type Flow<T> = {
  readonly client: Client<T>;
  readonly level: number;
  /** In order of arrival. */
  readonly waiting: T[];
  /** It has waited since then, or since its first sequence was queued. */
  sinceMs: number;
};

type Arrival = { priority: Priority; arrivalMs: number; order: number };

/** What the order needs to know. */
export type Waiting<T> = Arrival & {
  readonly flow: Flow<T>;
  /** The level that it had risen to when its prompt was computed. */
  level: number;
  /** It waits since then: it has arrived, or was preempted. */
  queuedMs: number;
};

/**
 * standing = level + 0.1 * seconds since arrival. All standings rise alike, so that the order of two running
 * sequences never changes, and a sequence that was preempted does not preempt in turn.
 */
export function standing({ priority, arrivalMs }: Arrival, nowMs: number): number {
  return levels[priority] + (nowMs - arrivalMs) / MS_PER_LEVEL;
}

/** Negative where `a` comes before `b`: the higher standing first, then first come, first served. */
export function compare(a: Arrival, b: Arrival): number {
  const since = ({ priority, arrivalMs }: Arrival) => arrivalMs - levels[priority] * MS_PER_LEVEL;
  return since(a) - since(b) || a.order - b.order;
}

/** Negative where flow `a` comes before `b` of the same level. */
export function compareService<T>(a: Flow<T>, b: Flow<T>): number {
  return a.client.served - b.client.served || a.sinceMs - b.sinceMs;
}

export class FairQueue<T extends Waiting<T>> {
  readonly #clients = new Map<string, Client<T>>();
  /** Those with waiting sequences. */
  readonly #flows = new Set<Flow<T>>();
  #length = 0;
  /** When a prompt of each level was last computed. */
  readonly #servedMs = [-1, -1, -1];
  #lastServed: Client<T> | undefined;

  get length(): number {
    return this.#length;
  }

  /** The flow of a new sequence, beside those that are running in their prompts; `leave` ends its part in it. */
  enter(name: string, priority: Priority, running: readonly T[]): Flow<T> {
    const client = this.#clients.get(name) ?? new Client<T>(name);
    const busy = new Set([...this.#flows, ...running.map(({ flow }) => flow)].map(clientOf));
    if (!busy.has(client)) {
      client.served = Math.max(client.served, leastServed(busy) ?? this.#lastServed?.served ?? 0);
    }
    client.active += 1;
    this.#clients.set(name, client);
    return client.flows[priority];
  }

  /** An idle client's count is forgotten once no active one has a lower count. */
  leave({ client }: Flow<T>): void {
    client.active -= 1;
    if (client.active > 0) return;
    const all = [...this.#clients.values()];
    const least = leastServed(all.filter(({ active }) => active > 0)) ?? Number.POSITIVE_INFINITY;
    for (const { name, active, served } of all) {
      if (active === 0 && served <= least) this.#clients.delete(name);
    }
  }

  add(entry: T): void {
    const { flow } = entry;
    const before = flow.waiting.findLastIndex((other) => compare(other, entry) < 0);
    flow.waiting.splice(before + 1, 0, entry);
    this.#flows.add(flow);
    this.#length += 1;
  }

  /** Whether it was there. */
  remove(entry: T): boolean {
    const { waiting } = entry.flow;
    const at = waiting.indexOf(entry);
    if (at < 0) return false;
    waiting.splice(at, 1);
    if (waiting.length === 0) this.#flows.delete(entry.flow);
    this.#length -= 1;
    return true;
  }

  /** The waiting sequences of one client. */
  of(name: string): T[] {
    const flows = Object.values(this.#clients.get(name)?.flows ?? {});
    return flows.flatMap(({ waiting }) => waiting);
  }

  /** The next of the waiting that are not passed over, and of these that are running. */
  next(
    nowMs: number,
    isPassedOver: (entry: T) => boolean,
    running: readonly T[] = [],
  ): T | undefined {
    const firsts = new Map<Flow<T>, T>();
    for (const flow of this.#flows) {
      const first = flow.waiting.find((entry) => !isPassedOver(entry));
      if (first) firsts.set(flow, first);
    }
    for (const entry of running) {
      const first = firsts.get(entry.flow);
      if (!first || compare(entry, first) < 0) firsts.set(entry.flow, entry);
    }
    let next: T | undefined;
    for (const entry of firsts.values()) {
      if (!next || this.#inTurn(entry, next, nowMs) < 0) next = entry;
    }
    return next;
  }

  /** A part of its prompt is computed now. */
  serve(entry: T, nowMs: number): void {
    const { flow } = entry;
    entry.level = Math.max(entry.level, this.#risenLevel(entry, nowMs));
    const most = (levels.HIGH - flow.level) * MS_PER_LEVEL;
    flow.sinceMs = nowMs - KEPT * Math.min(this.#waitedMs(entry, nowMs), most);
    this.#servedMs[flow.level] = nowMs;
    this.#lastServed = flow.client;
  }

  /** It was preempted, and waits again at the level that it had risen to. */
  addAgain(entry: T, nowMs: number): void {
    entry.queuedMs = nowMs - (entry.level - entry.flow.level) * MS_PER_LEVEL;
    this.add(entry);
  }

  *[Symbol.iterator](): Iterator<T> {
    for (const { waiting } of this.#flows) yield* waiting;
  }

  /** How long it was passed over. */
  #waitedMs({ flow, queuedMs }: T, nowMs: number): number {
    const sinceMs = Math.max(queuedMs, flow.sinceMs);
    const isPassed = this.#servedMs.some((ms, level) => level > flow.level && ms >= sinceMs);
    return isPassed ? nowMs - sinceMs : 0;
  }

  #risenLevel(entry: T, nowMs: number): number {
    const risen = entry.flow.level + Math.floor(this.#waitedMs(entry, nowMs) / MS_PER_LEVEL);
    return Math.min(risen, levels.HIGH);
  }

  /** Of the first ones of two flows: negative where `a` comes before `b`. */
  #inTurn(a: T, b: T, nowMs: number): number {
    return (
      this.#risenLevel(b, nowMs) - this.#risenLevel(a, nowMs) ||
      compareService(a.flow, b.flow) ||
      compare(a, b)
    );
  }
}

const clientOf = <T>({ client }: Flow<T>): Client<T> => client;

function leastServed<T>(clients: Iterable<Client<T>>): number | undefined {
  const counts = Array.from(clients, ({ served }) => served);
  return counts.length > 0 ? Math.min(...counts) : undefined;
}
