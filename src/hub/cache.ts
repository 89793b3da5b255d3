// The cache that every Hugging Face tool shares. A repo is a folder models--org--name with
//   blobs/<checksum>           the bytes, once each (or a link to the cache's own blobs/, which newer
//                              versions of huggingface_hub share between repos)
//   snapshots/<commit>/<file>  links to them
//   refs/<branch or tag>       its commit at the last pull
// Other tools write here too, so broken and unknown entries are skipped.
import {
  type Dirent,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statSync,
} from "node:fs";
import { dirname, join, relative, resolve, sep } from "node:path";
import { totalBytes } from "./bytes.ts";
import { checkInside } from "./cache-folder.ts";
import { HubError, ModelNotFoundError } from "./hub-error.ts";
import { takeRepoLock } from "./repo-lock.ts";
import { isCommit, isRepoId } from "./repo-name.ts";

export type CachedFile = { readonly path: string; readonly bytes: number };

export type CachedRevision = {
  readonly commit: string;
  readonly refs: readonly string[];
  readonly path: string;
  readonly files: readonly CachedFile[];
};

export type CachedRepo = {
  readonly id: string;
  readonly path: string;
  /** Size on disk of all blobs of the repo, each counted once, whether or not a revision uses it. */
  readonly bytes: number;
  readonly revisions: readonly CachedRevision[];
  readonly modifiedMs: number;
  readonly usedMs: number;
};

export type Removal = { readonly freedBytes: number };

/** Returns the name of a repo's folder, such as models--org--name. */
export function repoFolder(id: string): string {
  return ["models", ...id.split("/")].join("--");
}

export function repoPath(cache: string, id: string): string {
  return join(cache, repoFolder(id));
}

export function listRepos(cache: string): CachedRepo[] {
  return entriesOf(cache)
    .filter((entry) => entry.name.startsWith("models--"))
    .map((entry) => entry.name.split("--").slice(1).join("/"))
    .filter(isRepoId)
    .map((id) => readRepo(cache, id))
    .filter((repo) => repo !== undefined)
    .sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Reads a repo of the cache; returns undefined if it has no files there. */
export function readRepo(cache: string, id: string): CachedRepo | undefined {
  const path = repoPath(cache, id);
  const blobs = new Map<string, { bytes: number; modifiedMs: number; usedMs: number }>();
  const count = (file: string) => {
    const real = realPath(file);
    if (real === undefined) return;
    const { size, mtimeMs, atimeMs } = statSync(real);
    blobs.set(real, { bytes: size, modifiedMs: mtimeMs, usedMs: atimeMs });
  };
  for (const entry of entriesOf(join(path, "blobs"))) count(join(path, "blobs", entry.name));
  const revisions = revisionsOf(path);
  for (const revision of revisions) {
    for (const file of revision.files) count(join(revision.path, file.path));
  }
  if (blobs.size === 0 && revisions.length === 0) return undefined;
  const all = [...blobs.values()];
  return {
    id,
    path,
    bytes: totalBytes(all),
    revisions,
    modifiedMs: Math.max(0, ...all.map(({ modifiedMs }) => modifiedMs)),
    usedMs: Math.max(0, ...all.map(({ usedMs }) => usedMs)),
  };
}

/** Returns the folder of a revision. By default that is main, or else the only revision. */
export function findSnapshot(cache: string, id: string, revision?: string): string | undefined {
  const path = repoPath(cache, id);
  const commit = commitOf(path, revision ?? "main");
  const snapshot = commit && join(path, "snapshots", commit);
  if (snapshot && isFolder(snapshot)) return snapshot;
  if (revision !== undefined) return undefined;
  const snapshots = entriesOf(join(path, "snapshots")).filter((entry) => isCommit(entry.name));
  return snapshots.length === 1 ? join(path, "snapshots", snapshots[0]!.name) : undefined;
}

/** Removes a repo, or one revision together with the blobs that only this revision uses. */
export function removeFromCache(cache: string, id: string, revision?: string): Removal {
  const repo = readRepo(cache, id);
  if (!repo) throw new ModelNotFoundError(`${id} is not in the cache (${cache})`);
  using lock = takeRepoLock(cache, repoFolder(id));
  if (!lock) throw new HubError(`${id} is being pulled by another process: stop it first`);
  for (const folder of ["", "refs", "snapshots", "blobs", "trees"]) {
    const path = join(repo.path, folder);
    if (existsSync(path)) checkInside(cache, path);
  }
  if (revision === undefined) return removeRepo(cache, repo);

  const commit = commitOf(repo.path, revision);
  const found = repo.revisions.find((one) => one.commit === commit);
  if (!found) {
    const known = repo.revisions.flatMap(({ commit, refs }) => (refs.length > 0 ? refs : [commit]));
    throw new ModelNotFoundError(
      `the cache has no revision ${revision} of ${id}, only ${known.join(", ")}`,
    );
  }
  // Removes only this ref if another one points to the same commit.
  if (revision !== commit && found.refs.length > 1) {
    removeRef(repo.path, revision);
    return { freedBytes: 0 };
  }
  return repo.revisions.length === 1 ? removeRepo(cache, repo) : removeRevision(cache, repo, found);
}

/** Removes a repo, its blobs last, so that an interrupted removal leaves no model that looks complete. */
function removeRepo(cache: string, repo: CachedRepo): Removal {
  const links = blobLinks(repo.path);
  for (const part of ["refs", "snapshots", "blobs", ""]) {
    rmSync(join(repo.path, part), { recursive: true, force: true });
  }
  return { freedBytes: repo.bytes - sharedBytesLeft(cache, links) };
}

function removeRevision(cache: string, repo: CachedRepo, revision: CachedRevision): Removal {
  const others = repo.revisions.filter((one) => one !== revision);
  const kept = new Set(others.flatMap((one) => blobsOf(repo, one)));
  const blobs = [...new Set(blobsOf(repo, revision))].filter((blob) => !kept.has(blob));
  const links = blobLinks(repo.path).filter(({ path }) => blobs.includes(path));
  const sizes = blobs.map((blob) => statSync(blob, { throwIfNoEntry: false })?.size ?? 0);
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  for (const ref of revision.refs) removeRef(repo.path, ref);
  rmSync(join(repo.path, "trees", `${revision.commit}.json`), { force: true });
  rmSync(revision.path, { recursive: true, force: true });
  for (const blob of blobs) rmSync(blob, { force: true });
  return { freedBytes: bytes - sharedBytesLeft(cache, links) };
}

/** Removes a ref, and the empty folders of a branch name with slashes. */
function removeRef(repo: string, ref: string): void {
  const refs = join(repo, "refs");
  rmSync(join(refs, ref), { force: true });
  let folder = dirname(join(refs, ref));
  for (; folder !== refs && entriesOf(folder).length === 0; folder = dirname(folder)) {
    rmSync(folder, { recursive: true });
  }
}

type BlobLink = { readonly path: string; readonly target: string; readonly bytes: number };

/** Returns the repo's blobs that are links to the store shared between repos. */
function blobLinks(repo: string): BlobLink[] {
  const blobs = join(repo, "blobs");
  return entriesOf(blobs)
    .filter((entry) => entry.isSymbolicLink())
    .map((entry) => {
      const path = join(blobs, entry.name);
      const bytes = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
      return { path, target: resolve(blobs, readlinkSync(path)), bytes };
    });
}

/**
 * Removes the shared blobs in `links` to which no link remains; returns the total bytes of the others. The file
 * `<blob>.refs` lists a blob's links; a blob without that file stays.
 */
function sharedBytesLeft(cache: string, links: readonly BlobLink[]): number {
  const store = join(resolve(cache), "blobs");
  const left = links.filter(({ target }) => {
    if (!/^[0-9a-f]{2}\/[0-9a-f]{64}$/.test(relative(store, target).replaceAll(sep, "/")))
      return true;
    const list = readText(`${target}.refs`);
    if (list === undefined) return true;
    const used = list.split("\n").some((line) => line !== "" && isLink(join(cache, line)));
    if (!used) for (const file of [target, `${target}.refs`]) rmSync(file, { force: true });
    return used;
  });
  return totalBytes(left);
}

function revisionsOf(repo: string): CachedRevision[] {
  const refs = refsOf(join(repo, "refs"));
  return entriesOf(join(repo, "snapshots"))
    .filter((entry) => entry.isDirectory() && isCommit(entry.name))
    .map(({ name: commit }) => {
      const path = join(repo, "snapshots", commit);
      const named = refs.filter((ref) => ref.commit === commit).map(({ name }) => name);
      return { commit, refs: named, path, files: filesOf(path) };
    });
}

function refsOf(folder: string): { name: string; commit: string }[] {
  return pathsBelow(folder)
    .map((name) => ({ name, commit: readText(join(folder, name))?.trim() ?? "" }))
    .filter(({ commit }) => isCommit(commit));
}

/** Returns all readable files below a folder. */
export function filesOf(folder: string): CachedFile[] {
  return pathsBelow(folder).flatMap((path) => {
    const real = realPath(join(folder, path));
    return real === undefined ? [] : [{ path, bytes: statSync(real).size }];
  });
}

/** Returns the repo's blobs that a revision links to; ignores links to other places. */
function blobsOf(repo: CachedRepo, revision: CachedRevision): string[] {
  return revision.files
    .map(({ path }) => join(revision.path, path))
    .filter(isLink)
    .map((file) => resolve(dirname(file), readlinkSync(file)))
    .filter((blob) => dirname(blob) === join(repo.path, "blobs"));
}

function commitOf(repo: string, revision: string): string | undefined {
  if (isCommit(revision)) return revision;
  const commit = readText(join(repo, "refs", revision))?.trim();
  return commit !== undefined && isCommit(commit) ? commit : undefined;
}

function pathsBelow(folder: string): string[] {
  return entriesOf(folder)
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) =>
      entry.isDirectory()
        ? pathsBelow(join(folder, entry.name)).map((path) => join(entry.name, path))
        : [entry.name],
    );
}

function entriesOf(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch {
    return [];
  }
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

/** Resolves a link; returns undefined if it is broken. */
function realPath(path: string): string | undefined {
  return existsSync(path) ? realpathSync(path) : undefined;
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}

function isLink(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ?? false;
}
