// The page's localStorage entries. A common prefix keeps them apart from other data of the origin.

const PREFIX = "mlx-serve.";

export function kept(name: string): string | undefined {
  return localStorage.getItem(PREFIX + name) ?? undefined;
}

/** Stores a value, or removes it if undefined. Returns false if the browser's storage is full. */
export function keep(name: string, value: string | undefined): boolean {
  try {
    if (value === undefined) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
    return true;
  } catch {
    return false;
  }
}

/** Returns the rest of each stored name that starts with `beginning`. */
export function keptNames(beginning: string): string[] {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(PREFIX + beginning))
    .map((name) => name.slice(PREFIX.length + beginning.length));
}
