// Chooses whose prompt is prefilled next, among waiting sequences and running ones with incomplete prompts.
//
// A flow is the requests of one client (an API key) at one level (LOW 0, NORMAL 1, HIGH 2), first come, first
// served. Flows are ordered by
//
//   1. level, highest first. While only prompts of higher levels are prefilled, a flow ages: it rises one level
//      every ten seconds, up to HIGH. A step that prefills one of its own prompts takes back a tenth of that time.
//   2. tokens served to the client, fewest first, counting prompts and answers of all its levels.
//   3. waiting time, longest first.
//
// A client that returns from idleness starts at the lowest count of the active clients: idleness earns no credit.
// No flow starves: after at most 20 seconds it has aged to HIGH. There the client with the fewest tokens goes first;
// counts only grow by service, so each other client is served at most the difference before it.
//
// Preemption has its own order, by standing: see `compare`.

export type Priority = "LOW" | "NORMAL" | "HIGH";

export const levels: Record<Priority, number> = { LOW: 0, NORMAL: 1, HIGH: 2 };

const MS_PER_LEVEL = 10_000;

/** Fraction of a flow's waiting time that remains after a step prefills one of its prompts. */
const KEPT = 0.9;

export class Client<T> {
  readonly name: string;
  readonly flows: Readonly<Record<Priority, Flow<T>>>;
  /** Tokens computed for this client. */
  served = 0;
  /** Number of waiting and running sequences. */
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
  /** Waiting entries of the flow in order of arrival. */
  readonly waiting: T[];
  /** Start of the flow's waiting time; for a sequence queued later, `queuedMs` counts instead. */
  sinceMs: number;
};

type Arrival = { priority: Priority; arrivalMs: number; order: number };

/** The fields of a queue entry that determine its order. */
export type Waiting<T> = Arrival & {
  readonly flow: Flow<T>;
  /** Level that the entry had risen to when its prompt was last prefilled. */
  level: number;
  /** When the entry was queued: at its arrival or preemption. */
  queuedMs: number;
};

/**
 * standing = level + 0.1 * seconds since arrival. All standings rise at the same rate, so the order of two running
 * sequences never changes, and a preempted sequence never preempts the one that replaced it.
 */
export function standing({ priority, arrivalMs }: Arrival, nowMs: number): number {
  return levels[priority] + (nowMs - arrivalMs) / MS_PER_LEVEL;
}

/** Negative if `a` has the higher standing; ties go to the earlier arrival. */
export function compare(a: Arrival, b: Arrival): number {
  const since = ({ priority, arrivalMs }: Arrival) => arrivalMs - levels[priority] * MS_PER_LEVEL;
  return since(a) - since(b) || a.order - b.order;
}

/** Negative if flow `a` goes before `b` of the same level. */
export function compareService<T>(a: Flow<T>, b: Flow<T>): number {
  return a.client.served - b.client.served || a.sinceMs - b.sinceMs;
}

export class FairQueue<T extends Waiting<T>> {
  readonly #clients = new Map<string, Client<T>>();
  /** Flows with waiting sequences. */
  readonly #flows = new Set<Flow<T>>();
  #length = 0;
  /** Time of the last prefill of a prompt, by level. */
  readonly #servedMs = [-1, -1, -1];
  #lastServed: Client<T> | undefined;

  get length(): number {
    return this.#length;
  }

  /** Returns the flow of a new sequence. `running`: sequences in prefill. Each `enter` is paired with a `leave`. */
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

  /** Ends a sequence of the flow. Forgets idle clients that have been served at most as much as every active one. */
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

  /** Dequeues the entry; returns whether it was queued. */
  remove(entry: T): boolean {
    const { waiting } = entry.flow;
    const at = waiting.indexOf(entry);
    if (at < 0) return false;
    waiting.splice(at, 1);
    if (waiting.length === 0) this.#flows.delete(entry.flow);
    this.#length -= 1;
    return true;
  }

  /** Returns the waiting sequences of one client. */
  of(name: string): T[] {
    const flows = Object.values(this.#clients.get(name)?.flows ?? {});
    return flows.flatMap(({ waiting }) => waiting);
  }

  /** Returns the entry to prefill next: of `running` (with incomplete prompts), or waiting and not passed over. */
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

  /** Records that a chunk of the entry's prompt is prefilled now. */
  serve(entry: T, nowMs: number): void {
    const { flow } = entry;
    entry.level = Math.max(entry.level, this.#risenLevel(entry, nowMs));
    const most = (levels.HIGH - flow.level) * MS_PER_LEVEL;
    flow.sinceMs = nowMs - KEPT * Math.min(this.#waitedMs(entry, nowMs), most);
    this.#servedMs[flow.level] = nowMs;
    this.#lastServed = flow.client;
  }

  /** Queues a preempted entry again, at the level that it had risen to. */
  addAgain(entry: T, nowMs: number): void {
    entry.queuedMs = nowMs - (entry.level - entry.flow.level) * MS_PER_LEVEL;
    this.add(entry);
  }

  *[Symbol.iterator](): Iterator<T> {
    for (const { waiting } of this.#flows) yield* waiting;
  }

  /** How long the entry has waited, if a prompt of a higher level was prefilled meanwhile; otherwise 0. */
  #waitedMs({ flow, queuedMs }: T, nowMs: number): number {
    const sinceMs = Math.max(queuedMs, flow.sinceMs);
    const isPassed = this.#servedMs.some((ms, level) => level > flow.level && ms >= sinceMs);
    return isPassed ? nowMs - sinceMs : 0;
  }

  #risenLevel(entry: T, nowMs: number): number {
    const risen = entry.flow.level + Math.floor(this.#waitedMs(entry, nowMs) / MS_PER_LEVEL);
    return Math.min(risen, levels.HIGH);
  }

  /** Negative if entry `a` goes before `b`; each is the first of its flow. */
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
