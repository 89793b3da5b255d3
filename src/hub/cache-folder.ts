// Creates and checks folders of the cache before a write. Other users may be able to write to the cache; links that
// they create must not redirect a pull or a removal to a place outside it.
import { mkdirSync, realpathSync } from "node:fs";
import { join, sep } from "node:path";
import { codeOf, HubError } from "./hub-error.ts";

/** Creates a folder and its parents, and returns its path; `path` is relative to the cache. */
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

/** Throws if the path resolves to a place outside the cache, or does not exist. */
export function checkInside(cache: string, path: string): void {
  if (realPath(path)?.startsWith(realpathSync(cache) + sep)) return;
  throw new HubError(`${path} is a link to a place outside the cache: remove it`);
}

function realPath(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}
