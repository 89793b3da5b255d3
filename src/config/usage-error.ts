// A usage error: an unknown or invalid flag, variable or key in the settings file. It is reported in one
// line, and the program exits with code 2.

export class UsageError extends Error {
  override name = "UsageError";
}
