// What the browser keeps for the page. All names begin alike, so that nothing else of the origin is touched.

const PREFIX = "mlx-serve.";

export function kept(name: string): string | undefined {
  return localStorage.getItem(PREFIX + name) ?? undefined;
}

/** False where the browser has no room for it. */
export function keep(name: string, value: string | undefined): boolean {
  try {
    if (value === undefined) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
    return true;
  } catch {
    return false;
  }
}

/** The names that begin like this, without that beginning. */
export function keptNames(beginning: string): string[] {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(PREFIX + beginning))
    .map((name) => name.slice(PREFIX.length + beginning.length));
}
