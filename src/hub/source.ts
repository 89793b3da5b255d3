// Resolves a model name to a folder with config.json or to a GGUF file. Names in HTTP requests never become paths:
// with `allowPaths: false`, only the default model and the repos in the cache are found.
import { readdirSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { carried, defaultModelPath } from "../../ffi/native.ts";
import { filesOf, findSnapshot, readRepo } from "./cache.ts";
import { ggufStem, matchingGgufs } from "./gguf-choice.ts";
import { codeOf, HubError, ModelNotFoundError, quoted } from "./hub-error.ts";
import { fullName, unknownModel } from "./popular-models.ts";
import { parseRepoName, type RepoName } from "./repo-name.ts";
import { type Environment, expandHome, hubCache } from "./settings.ts";

export type ModelSource =
  | { readonly kind: "folder"; readonly path: string; readonly name: string }
  | { readonly kind: "gguf"; readonly path: string; readonly name: string };

export type ResolveOptions = {
  /** Whether the name may be a local path. */
  allowPaths?: boolean;
  env?: Environment;
};

/** Returns the files of a model; throws ModelNotFoundError if no model has the name. */
export function resolveModel(name: string, options: ResolveOptions = {}): ModelSource {
  const { allowPaths = true, env = process.env } = options;
  if (name === "" || name === "default") return defaultModel(env);
  if (allowPaths && !name.includes("\0")) {
    if (/^(\.{0,2}|~)\//.test(name)) return localModel(expandHome(name, env));
    // A name without a leading dot is a path only if a model exists there.
    const found = name.split("/").includes("..") ? undefined : modelAt(name);
    if (found) return found;
  }
  const full = fullName(name, env);
  const repo = parseRepoName(full);
  if (!repo) throw notNamed(name, allowPaths, env);
  return cachedModel(repo, full, allowPaths, env);
}

function defaultModel(env: Environment): ModelSource {
  const path = defaultModelPath(env);
  if (isFile(path)) return ggufAt(path);
  throw new ModelNotFoundError(
    carried
      ? "no model given: `mlx-serve pull <repo>` downloads one, `mlx-serve serve <repo>` serves it"
      : "the default model is missing: `npm start` creates it",
  );
}

function localModel(path: string): ModelSource {
  const found = modelAt(path);
  if (found) return found;
  const kind = statOf(path);
  if (!kind) throw new ModelNotFoundError(`${path}: no such file or folder`);
  if (!kind.isDirectory()) throw new ModelNotFoundError(`${path}: not a GGUF file`);
  const files = matchingGgufs(namesIn(path));
  throw new ModelNotFoundError(
    files.length > 1
      ? `${path} contains ${files.length} GGUF files: choose one of ${list(files)}`
      : `${path}: the folder contains neither config.json nor a GGUF file`,
  );
}

/** Returns the model at a path: a folder with config.json or a single GGUF file, or a GGUF file. */
function modelAt(path: string): ModelSource | undefined {
  const kind = statOf(path);
  if (kind?.isFile()) return path.endsWith(".gguf") ? ggufAt(path) : undefined;
  if (!kind?.isDirectory()) return undefined;
  const folder = resolve(path);
  if (isFile(join(folder, "config.json")))
    return { kind: "folder", path: folder, name: basename(folder) };
  const files = matchingGgufs(namesIn(folder));
  return files.length === 1 ? ggufAt(join(folder, files[0]!)) : undefined;
}

function cachedModel(
  { id, revision, file }: RepoName,
  name: string,
  allowPaths: boolean,
  env: Environment,
): ModelSource {
  const cache = hubCache(env);
  const snapshot = findSnapshot(cache, id, revision);
  if (!snapshot) throw notCached(cache, name, id, allowPaths, env);
  const hasConfig = isFile(join(snapshot, "config.json"));
  if (hasConfig && file === undefined) return { kind: "folder", path: snapshot, name };
  const all = filesOf(snapshot).map(({ path }) => path);
  const [match, ...others] = matchingGgufs(all, file);
  if (match !== undefined && others.length === 0) {
    return { kind: "gguf", path: join(snapshot, match), name };
  }
  if (match !== undefined) {
    throw new ModelNotFoundError(
      `${name} matches several files: choose one as ${id}:<file>, from ${list([match, ...others])}`,
    );
  }
  const wanted = file === undefined ? "config.json or GGUF file" : `GGUF file ${quoted(file)}`;
  throw new ModelNotFoundError(`${id} has no ${wanted} in the cache: \`mlx-serve pull ${name}\``);
}

/** Returns the error for a model that is not in the cache; only a user of this machine sees the full path. */
function notCached(
  cache: string,
  name: string,
  id: string,
  isLocal: boolean,
  env: Environment,
): ModelNotFoundError {
  // A name without an organization cannot be pulled, so its error suggests no pull.
  if (!isLocal || !id.includes("/")) return notNamed(name, isLocal, env);
  const commits = readRepo(cache, id)?.revisions.map(({ commit }) => commit) ?? [];
  const known = commits.length > 0 ? `, which has only ${list(commits)}` : "";
  return new ModelNotFoundError(
    `${name} is not in the cache (${cache})${known}: \`mlx-serve pull ${name}\` downloads it`,
  );
}

function notNamed(name: string, isLocal: boolean, env: Environment): ModelNotFoundError {
  if (isLocal) return unknownModel(name, env);
  return new ModelNotFoundError(`no model is named ${quoted(name)}`);
}

function ggufAt(path: string): ModelSource {
  return { kind: "gguf", path: resolve(path), name: ggufStem(path) };
}

function statOf(path: string): ReturnType<typeof statSync> {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch (error) {
    if (["ENOTDIR", "ENAMETOOLONG", "ELOOP"].includes(codeOf(error) ?? "")) return undefined;
    throw unreadable(path, error);
  }
}

function isFile(path: string): boolean {
  return statOf(path)?.isFile() ?? false;
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    throw unreadable(folder, error);
  }
}

function unreadable(path: string, error: unknown): HubError {
  return new HubError(`${path}: cannot be read (${codeOf(error)}): check its permissions`);
}

function list(names: readonly string[]): string {
  const shown = names.slice(0, 12).join(", ");
  return names.length > 12 ? `${shown} and ${names.length - 12} more` : shown;
}
