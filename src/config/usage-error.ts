// What was asked for cannot be: a flag, a variable or a key of the file is unknown or wrong. It is said
// in one line, and the program ends with exit code 2.

export class UsageError extends Error {
  override name = "UsageError";
}
