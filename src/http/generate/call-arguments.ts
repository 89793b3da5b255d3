// Parses the arguments of a tool call, for APIs that return them as a JSON value.

/** Returns the parsed arguments; undefined if the token limit cut them off. */
export function callArguments(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
