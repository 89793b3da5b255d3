// Downloads a model from the hub to the cache, in the layout of huggingface_hub. Blobs are written first, then the
// links to them with config.json last, then the ref: an interrupted pull never leaves a model that looks complete.
import { readlinkSync, renameSync, rmSync, statSync, symlinkSync } from "node:fs";
import { readFile, rename, rm, statfs, writeFile } from "node:fs/promises";
import { basename, dirname, join, relative } from "node:path";
import { formatBytes } from "./bytes.ts";
import { repoFolder } from "./cache.ts";
import { makeFolder } from "./cache-folder.ts";
import { type Download, download } from "./download.ts";
import { fileUrl } from "./file-part.ts";
import { HubError, quoted } from "./hub-error.ts";
import { checkFile, listRepo, type RepoFile } from "./listing.ts";
import { filesOfModel, type Wanted } from "./model-files.ts";
import { diskError } from "./partial-blob.ts";
import { waitForRepoLock } from "./repo-lock.ts";
import { isRelativePath, isRepoId } from "./repo-name.ts";
import { defaultRetryPolicy, type Hub, type RetryOptions, type RetryPolicy } from "./request.ts";
import { type Environment, hubCache, hubEndpoint, hubToken, isOffline } from "./settings.ts";

export type PullEvent =
  | { kind: "waiting" }
  | { kind: "listed"; commit: string; files: number; bytes: number; cachedBytes: number }
  | { kind: "bytes"; doneBytes: number; totalBytes: number }
  | { kind: "retry"; reason: string; delayMs: number };

export type PullOptions = Wanted & {
  readonly revision?: string;
  readonly env?: Environment;
  readonly signal?: AbortSignal;
  readonly retry?: Partial<RetryPolicy>;
  onEvent?(event: PullEvent): void;
};

export type Pulled = {
  /** Path of the snapshot's folder. */
  readonly path: string;
  readonly commit: string;
  readonly files: number;
  readonly bytes: number;
  readonly downloadedBytes: number;
};

const FILES_AT_ONCE = 4;

/** Downloads a model, named by its repo (org/name). */
export async function pullModel(repo: string, options: PullOptions = {}): Promise<Pulled> {
  const { env = process.env, revision = "main", onEvent = () => {} } = options;
  if (!isRepoId(repo)) throw new HubError(`${quoted(repo)} is not the name of a repo: org/name`);
  if (!isRelativePath(revision)) throw new HubError(`${quoted(revision)} is not a revision`);
  if (isOffline(env)) {
    throw new HubError(
      `HF_HUB_OFFLINE is set, so ${repo} cannot be pulled: unset it and try again`,
    );
  }
  const cache = hubCache(env);
  const hub = { endpoint: hubEndpoint(env), token: hubToken(env), repo, revision };
  const stop = new AbortController();
  const retry: RetryOptions = {
    policy: { ...defaultRetryPolicy, ...options.retry },
    signal: options.signal ? AbortSignal.any([options.signal, stop.signal]) : stop.signal,
    onRetry: ({ message }, delayMs) => onEvent({ kind: "retry", reason: message, delayMs }),
  };
  const { commit, files: all } = await listRepo(hub, retry);
  const chosen = new Set(
    filesOfModel(
      repo,
      all.map(({ path }) => path),
      options,
    ),
  );
  const files = all.filter(({ path }) => chosen.has(path));
  for (const file of files) checkFile(hub, file);
  try {
    const wait = () => onEvent({ kind: "waiting" });
    using _lock = await waitForRepoLock(cache, repoFolder(repo), wait, retry.signal);
    const folder = repoFolder(repo);
    const blobs = makeFolder(cache, join(folder, "blobs"));
    const downloadedBytes = await bring(hub, commit, files, blobs, stop, retry, onEvent);
    const path = makeFolder(cache, join(folder, "snapshots", commit));
    // config.json is linked last, because a folder with this file counts as a model.
    const last = (file: RepoFile) => Number(file.path === "config.json");
    for (const { path: file, id } of files.toSorted((a, b) => last(a) - last(b))) {
      const target = join(path, file);
      makeFolder(cache, relative(cache, dirname(target)));
      link(join(blobs, id.checksum), target);
    }
    if (revision !== commit) await writeRef(cache, join(folder, "refs", revision), commit);
    return { path, commit, files: files.length, bytes: sizeOf(files), downloadedBytes };
  } catch (error) {
    throw diskError(error, cache);
  }
}

/** Downloads the missing blobs, a few concurrently; returns the number of bytes transferred. */
async function bring(
  hub: Hub,
  commit: string,
  files: readonly RepoFile[],
  blobs: string,
  stop: AbortController,
  retry: RetryOptions,
  onEvent: (event: PullEvent) => void,
): Promise<number> {
  const wanted = new Map(files.map((file) => [file.id.checksum, file]));
  const missing = [...wanted.values()].filter(
    ({ id }) => sizeAt(join(blobs, id.checksum)) !== id.bytes,
  );
  const begun = new Map(
    missing.map(({ id }) => {
      const size = sizeAt(join(blobs, `${id.checksum}.incomplete`)) ?? 0;
      return [id.checksum, size <= id.bytes ? size : 0];
    }),
  );
  const totalBytes = sizeOf([...wanted.values()]);
  const wholeBytes = totalBytes - sizeOf(missing);
  const bytesHere = () => [...begun.values()].reduce((sum, bytes) => sum + bytes, wholeBytes);
  const cachedBytes = bytesHere();
  onEvent({ kind: "listed", commit, files: files.length, bytes: totalBytes, cachedBytes });
  await checkSpace(blobs, totalBytes - cachedBytes);

  let downloadedBytes = 0;
  const queue = missing.values();
  const worker = async () => {
    for (const { path, id } of queue) {
      const file: Download = { id, path, url: fileUrl(hub, commit, path) };
      const onBytes = (bytes: number, newBytes: number) => {
        downloadedBytes += newBytes;
        begun.set(id.checksum, bytes);
        onEvent({ kind: "bytes", doneBytes: bytesHere(), totalBytes });
      };
      await download(hub, file, blobs, { ...retry, onBytes });
    }
  };
  const workers = Array.from({ length: FILES_AT_ONCE }, () =>
    // If one download fails, the others stop too, and keep their bytes for the next pull.
    worker().catch((error: unknown) => stop.abort(error)),
  );
  await Promise.all(workers);
  stop.signal.throwIfAborted();
  return downloadedBytes;
}

async function checkSpace(folder: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (bytes <= free) return;
  throw new HubError(
    `the pull needs ${formatBytes(bytes)}, but ${folder} has ${formatBytes(free)} free: ` +
      "free some space, or set HF_HUB_CACHE to another disk",
  );
}

/** Creates the link or replaces it atomically, so that concurrent readers always find a file. */
function link(blob: string, path: string): void {
  const target = relative(dirname(path), blob);
  if (linkAt(path) === target) return;
  const temporary = `${path}.${process.pid}.tmp`;
  rmSync(temporary, { force: true });
  symlinkSync(target, temporary);
  renameSync(temporary, path);
}

function linkAt(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}

async function writeRef(cache: string, ref: string, commit: string): Promise<void> {
  const path = join(makeFolder(cache, dirname(ref)), basename(ref));
  const before = await readFile(path, "utf8").catch(() => undefined);
  if (before === commit) return;
  const temporary = `${path}.${process.pid}.tmp`;
  await rm(temporary, { force: true });
  await writeFile(temporary, commit, { flag: "wx" });
  await rename(temporary, path);
}

function sizeAt(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.size;
}

function sizeOf(files: readonly RepoFile[]): number {
  return files.reduce((sum, { id }) => sum + id.bytes, 0);
}
