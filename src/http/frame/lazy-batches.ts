// Opens the server's batches on first use, so that a server without batches writes nothing to disk. Unfinished batches
// of an earlier server are opened at startup.
import { SQLiteError } from "bun:sqlite";
import { existsSync } from "node:fs";
import { Batches, type BatchesOptions } from "../../batch/batches.ts";
import { databaseIn, isDiskFull, StoreBusyError } from "../../batch/database.ts";
import { codeOf } from "../../hub/hub-error.ts";
import type { Logger } from "../../log.ts";
import { ApiError, draining } from "./errors.ts";

export class LazyBatches {
  readonly #folder: string;
  readonly #options: (folder: string) => BatchesOptions;
  readonly #log: Logger;
  #batches: Batches | undefined;
  #isStopped = false;

  constructor(folder: string, options: (folder: string) => BatchesOptions, log: Logger) {
    this.#folder = folder;
    this.#options = options;
    this.#log = log;
  }

  /** The batches; opens the store if necessary. Throws ApiError if that fails. */
  get open(): Batches {
    if (this.#isStopped) throw draining();
    try {
      this.#batches ??= new Batches(this.#options(this.#folder));
      return this.#batches;
    } catch (error) {
      if (unwritable.includes(codeOf(error) ?? "")) {
        this.#log.error(
          { error: (error as Error).message },
          "files cannot be stored: choose another --data-dir",
        );
        throw new ApiError(500, "The server cannot store files.");
      }
      if (!(error instanceof StoreBusyError)) throw storageError(error);
      const message = "Another server on this machine has the files and batches.";
      throw new ApiError(503, message, { code: "storage_busy" });
    }
  }

  /** The batches, opened if their store exists on disk; otherwise undefined. */
  get existing(): Batches | undefined {
    return existsSync(databaseIn(this.#folder)) ? this.open : undefined;
  }

  /** Resumes unfinished batches, if a store exists. */
  resume(): void {
    try {
      void this.existing;
    } catch (error) {
      const told = { error: (error as Error).message };
      this.#log.warn(told, "files and batches are disabled: choose another --data-dir");
    }
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#batches?.stop();
  }
}

const unwritable = ["EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST"];

/** Maps errors of the disk to responses; other errors are returned unchanged. */
export function storageError(error: unknown): unknown {
  if (isDiskFull(error)) {
    return new ApiError(507, "The server has no room to store it.", { code: "storage_full" });
  }
  const isSqlite = error instanceof SQLiteError;
  return isSqlite ? new ApiError(500, "The files and batches cannot be read.") : error;
}
