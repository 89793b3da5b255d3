// Sends long strings between threads as separate messages: bun shares the memory of a string that is the message's own
// property, but copies nested strings, which takes tens of milliseconds for megabytes.

const LONG = 2 ** 16;

/** Moves each long string to `long`; its index there replaces it, as a bigint: JSON has no other bigints. */
export function takeOut(value: unknown, long: string[]): unknown {
  return mapped(value, (item) => {
    if (typeof item !== "string" || item.length < LONG) return item;
    return BigInt(long.push(item) - 1);
  });
}

export function putBack(value: unknown, long: readonly string[]): unknown {
  if (long.length === 0) return value;
  return mapped(value, (item) => (typeof item === "bigint" ? long[Number(item)] : item));
}

function mapped(value: unknown, of: (leaf: unknown) => unknown): unknown {
  if (typeof value !== "object" || value === null) return of(value);
  if (Array.isArray(value)) return value.map((item) => mapped(item, of));
  const entries = Object.entries(value);
  const items = entries.map(([, item]) => mapped(item, of));
  // Returns an object without changes itself: comparing its entries costs less than building a new one.
  if (items.every((item, i) => item === entries[i]![1])) return value;
  return Object.fromEntries(entries.map(([key], i) => [key, items[i]]));
}
