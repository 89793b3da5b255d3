// Ensures that only one process writes to a cached repo.
import { lstatSync } from "node:fs";
import { join } from "node:path";
import { lockFile } from "../file-lock.ts";
import { checkInside, makeFolder } from "./cache-folder.ts";
import { codeOf } from "./hub-error.ts";

const POLL_MS = 100;

/** Takes the lock of a repo; returns undefined while another process holds it. */
export function takeRepoLock(cache: string, folder: string): Disposable | undefined {
  const path = join(makeFolder(cache, join(".locks", folder)), "mlx-serve.lock");
  if (lstatSync(path, { throwIfNoEntry: false })) checkInside(cache, path);
  try {
    return lockFile(path);
  } catch (error) {
    if (codeOf(error)?.startsWith("SQLITE_BUSY")) return undefined;
    // If the file system has no locks, the pull runs without one; checksums still protect the files.
    return { [Symbol.dispose]() {} };
  }
}

export async function waitForRepoLock(
  cache: string,
  folder: string,
  onWait: () => void,
  signal?: AbortSignal,
): Promise<Disposable> {
  for (let asked = 0; ; asked++) {
    signal?.throwIfAborted();
    const lock = takeRepoLock(cache, folder);
    if (lock) return lock;
    if (asked === 0) onWait();
    await Bun.sleep(POLL_MS);
  }
}
