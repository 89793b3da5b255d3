// mlx-serve rm: removes a model or one revision from the cache. Files elsewhere are never removed.
import { existsSync } from "node:fs";
import { parseArgs } from "node:util";
import { defaultModelPath } from "../../ffi/native.ts";
import { UsageError } from "../config/usage-error.ts";
import { formatBytes } from "../hub/bytes.ts";
import { readRepo, removeFromCache } from "../hub/cache.ts";
import { ModelNotFoundError, quoted } from "../hub/hub-error.ts";
import { fullName, unknownModel } from "../hub/popular-models.ts";
import { parseRepoName } from "../hub/repo-name.ts";
import { type Environment, hubCache } from "../hub/settings.ts";

const usage = "mlx-serve rm <org/name>[@revision] [--yes]";

export async function rm(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { yes: { type: "boolean", short: "y" } },
    allowPositionals: true,
  });
  const [name, ...more] = positionals;
  if (name === undefined || more.length > 0) throw new UsageError(`usage: ${usage}`);
  if (name === "default") throw new UsageError(aboutDefault(env));
  const repo = parseRepoName(fullName(name, env));
  if (!repo || repo.file !== undefined) {
    throw new UsageError(
      `${quoted(name)} is not the name of a repo, and rm takes no paths: ${usage}`,
    );
  }
  const cache = hubCache(env);
  const cached = readRepo(cache, repo.id);
  if (!cached && !repo.id.includes("/")) throw unknownModel(name, env);
  if (!cached) throw new ModelNotFoundError(`${repo.id} is not in the cache (${cache})`);
  if (!values.yes && !agreed(name, cached.bytes)) return console.log("nothing was removed");
  const { freedBytes } = removeFromCache(cache, repo.id, repo.revision);
  console.log(`removed ${name}: ${formatBytes(freedBytes)} freed`);
}

function aboutDefault(env: Environment): string {
  const path = defaultModelPath(env);
  const what = existsSync(path) ? path : `${path}, which does not exist`;
  return `default is the model served if none is named (${what}), not a repo of the cache`;
}

function agreed(name: string, bytes: number): boolean {
  if (!process.stdin.isTTY) {
    throw new UsageError(`rm asks on a terminal only: add --yes to remove ${name}`);
  }
  return confirm(`remove ${name} (of ${formatBytes(bytes)} in the cache)?`);
}
