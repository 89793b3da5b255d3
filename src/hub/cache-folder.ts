// Folders of the cache, before something is written to them. Others may be able to write to the cache too:
// no link of theirs leads a pull or a removal out of it.
import { mkdirSync, realpathSync } from "node:fs";
import { join, sep } from "node:path";
import { codeOf, HubError } from "./hub-error.ts";

/** Makes a folder of the cache, and those above it; `path` is its path in the cache. */
export function makeFolder(cache: string, path: string): string {
  mkdirSync(cache, { recursive: true });
  return path.split(sep).reduce((above, name) => {
    const folder = join(above, name);
    try {
      mkdirSync(folder);
    } catch (error) {
      if (codeOf(error) !== "EEXIST") throw error;
      checkInside(cache, folder);
    }
    return folder;
  }, cache);
}

/** Refuses what a link leads out of the cache, or nowhere. */
export function checkInside(cache: string, path: string): void {
  if (realPath(path)?.startsWith(realpathSync(cache) + sep)) return;
  throw new HubError(`${path} is a link that leads out of the cache: remove it`);
}

function realPath(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}
