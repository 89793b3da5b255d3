// Parses the arguments of a tool call, for APIs that return them as a JSON value.

/** Undefined if the token limit truncated them. */
export function callArguments(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
