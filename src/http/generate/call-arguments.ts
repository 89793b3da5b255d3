// The arguments of a call as a value, for APIs that do not pass them on as text.

/** Undefined if the token limit cut them off. */
export function callArguments(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
