// Where files and batches are kept unless the user says otherwise.
import { join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";

export function defaultDataFolder(
  env: Readonly<Record<string, string | undefined>> = process.env,
): string {
  return join(cacheDirectory(env), "batches");
}
