// Waiting sequences in the order in which they are admitted. Waiting raises a standing by a tenth of a level
// a second:
//
//   standing = level + 0.1 * seconds waited        (LOW 0, NORMAL 1, HIGH 2)
//
// All standings rise alike, so the order of two sequences never changes. A level is worth ten seconds: the order
// is that of arrival, with NORMAL taken as ten seconds earlier than it came and HIGH as twenty. So a LOW
// request waits for requests that arrive up to 20 seconds after it, and for no later one.

export type Priority = "LOW" | "NORMAL" | "HIGH";

export const levels: Record<Priority, number> = { LOW: 0, NORMAL: 1, HIGH: 2 };

const MS_PER_LEVEL = 10_000;

/** What the order needs to know. */
export type Waiting = { priority: Priority; arrivalMs: number; order: number };

export function standing({ priority, arrivalMs }: Waiting, nowMs: number): number {
  return levels[priority] + (nowMs - arrivalMs) / MS_PER_LEVEL;
}

/** Negative where `a` comes before `b`: the higher standing first, then first come, first served. */
export function compare(a: Waiting, b: Waiting): number {
  const since = ({ priority, arrivalMs }: Waiting) => arrivalMs - levels[priority] * MS_PER_LEVEL;
  return since(a) - since(b) || a.order - b.order;
}

export class WaitingQueue<T extends Waiting> {
  readonly #sorted: T[] = [];

  get length(): number {
    return this.#sorted.length;
  }

  /** The first that is not passed over; it stays. */
  first(isPassedOver: (entry: T) => boolean): T | undefined {
    return this.#sorted.find((entry) => !isPassedOver(entry));
  }

  add(entry: T): void {
    let [low, high] = [0, this.#sorted.length];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (compare(this.#sorted[middle]!, entry) < 0) low = middle + 1;
      else high = middle;
    }
    this.#sorted.splice(low, 0, entry);
  }

  /** Whether it was there. */
  remove(entry: T): boolean {
    const at = this.#sorted.indexOf(entry);
    if (at >= 0) this.#sorted.splice(at, 1);
    return at >= 0;
  }

  [Symbol.iterator](): Iterator<T> {
    return this.#sorted.values();
  }
}
