// The error of an invalid model file, in one line: the file or tensor, the expected value and the actual one.

export class LoadError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "LoadError";
  }
}

/** Quotes untrusted text for an error message: escaped to one line, and truncated. */
export function quoted(name: string): string {
  return JSON.stringify(name.length > 100 ? `${name.slice(0, 100)}...` : name);
}
