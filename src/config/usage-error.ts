// An unknown or invalid flag, variable or key of the settings file. Reported in one line; the exit code is 2.

export class UsageError extends Error {
  override name = "UsageError";
}
