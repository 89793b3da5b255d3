// What is wrong with a model's files, in one line: which file or tensor, what was expected and what
// was found.

export class LoadError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "LoadError";
  }
}

/** A text of a file or a user in an error: on one line, and short. */
export function quoted(name: string): string {
  return JSON.stringify(name.length > 100 ? `${name.slice(0, 100)}...` : name);
}
