// Resolves a model to serve or run: from this machine, or, if the user on a terminal agrees, from the hub.
import { formatBytes } from "../../hub/bytes.ts";
import { findSnapshot } from "../../hub/cache.ts";
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import { fullName, popularModels } from "../../hub/popular-models.ts";
import { parseRepoName, type RepoName } from "../../hub/repo-name.ts";
import { type Environment, hubCache, isOffline } from "../../hub/settings.ts";
import { type ModelSource, resolveModel } from "../../hub/source.ts";
import { pullShown } from "./pull.ts";

export async function modelHere(
  name: string,
  env: Environment = process.env,
): Promise<ModelSource> {
  try {
    return resolveModel(name, { env });
  } catch (error) {
    const repo = error instanceof ModelNotFoundError ? missingRepo(name, env) : undefined;
    if (!repo || !process.stdin.isTTY || !process.stderr.isTTY || isOffline(env)) throw error;
    if (!confirm(`${repo.id} is not on this machine${sizeOf(repo, env)}. Pull it?`)) throw error;
    await pullShown(repo, { env });
    return resolveModel(name, { env });
  }
}

/** Returns the repo that a pull could download; undefined if `name` is no repo name, or the repo is cached. */
function missingRepo(name: string, env: Environment): RepoName | undefined {
  const repo = parseRepoName(fullName(name, env));
  if (!repo?.id.includes("/")) return undefined;
  return findSnapshot(hubCache(env), repo.id, repo.revision) === undefined ? repo : undefined;
}

function sizeOf({ id }: RepoName, env: Environment): string {
  const bytes = popularModels(env).find(({ repo }) => repo === id)?.bytes;
  return bytes === undefined ? "" : `: ${formatBytes(bytes)} to download`;
}
