// Reads the API keys of a server, and checks that it may start with them.
import type { Settings } from "../../config/settings.ts";
import { UsageError } from "../../config/usage-error.ts";
import { bindProblem } from "../../http/frame/bind.ts";
import type { Environment } from "../../hub/settings.ts";
import { type KeyFile, keyFileOf, readKeyFile } from "../../keys/key-file.ts";

/** Reads the keys file, if it exists. Throws if other hosts could reach the server without a key. */
export function readKeys(
  settings: Settings,
  env: Environment = process.env,
): { keysPath: string; keys: KeyFile | undefined } {
  const keysPath = keyFileOf(settings, env);
  const keys = readKeyFile(keysPath);
  if (settings.keysFile !== undefined && !keys) throw new UsageError(`${keysPath} does not exist`);
  const keysSet = keys !== undefined || settings.apiKey.length > 0;
  const problem = bindProblem({ ...settings, keysSet });
  if (problem) throw new UsageError(problem);
  return { keysPath, keys };
}
