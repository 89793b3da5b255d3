// One process at a time writes to a cached repo. The lock is SQLite's on an empty file: the system
// takes it back when its holder dies, however that happens, so no lock is ever stale.
import { Database } from "bun:sqlite";
import { lstatSync } from "node:fs";
import { join } from "node:path";
import { checkInside, makeFolder } from "./cache-folder.ts";
import { codeOf } from "./hub-error.ts";

const POLL_MS = 100;

export type RepoLock = { release(): void; [Symbol.dispose](): void };

/** The lock of a repo's folder in the cache, or undefined while another holds it. */
export function takeRepoLock(cache: string, folder: string): RepoLock | undefined {
  const path = join(makeFolder(cache, join(".locks", folder)), "mlx-serve.lock");
  if (lstatSync(path, { throwIfNoEntry: false })) checkInside(cache, path);
  const file = new Database(path, { create: true });
  const release = () => file.close();
  try {
    file.run("PRAGMA busy_timeout = 0");
    file.run("BEGIN EXCLUSIVE");
  } catch (error) {
    if (codeOf(error)?.startsWith("SQLITE_BUSY")) {
      release();
      return undefined;
    }
    // A file system without locks: the checksums still hold.
  }
  return { release, [Symbol.dispose]: release };
}

export async function waitForRepoLock(
  cache: string,
  folder: string,
  onWait: () => void,
  signal?: AbortSignal,
): Promise<RepoLock> {
  for (let asked = 0; ; asked++) {
    signal?.throwIfAborted();
    const lock = takeRepoLock(cache, folder);
    if (lock) return lock;
    if (asked === 0) onWait();
    await Bun.sleep(POLL_MS);
  }
}
