// A lock between processes, made of SQLite's lock on an empty file. The system releases it when its holder dies.
import { Database } from "bun:sqlite";

/** Takes the lock; throws an error with a code (SQLITE_BUSY, ...) if another process still has it after `waitMs`. */
export function lockFile(path: string, waitMs = 0): Disposable {
  const file = new Database(path, { create: true });
  try {
    file.run(`PRAGMA busy_timeout = ${waitMs}`);
    file.run("BEGIN EXCLUSIVE");
    return file;
  } catch (error) {
    file.close();
    throw error;
  }
}
