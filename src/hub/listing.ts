// What the hub says of a repo: the commit of a revision, and its files with their checksums.
import { HubError, quoted } from "./hub-error.ts";
import type { BlobId } from "./partial-blob.ts";
import { isCommit, isRelativePath } from "./repo-name.ts";
import { broken, type Hub, type RetryOptions, request, retrying } from "./request.ts";

export type RepoFile = { readonly path: string; readonly id: BlobId };
export type Listing = { readonly commit: string; readonly files: readonly RepoFile[] };

export async function listRepo(hub: Hub, retry: RetryOptions): Promise<Listing> {
  try {
    return await ask(hub, retry);
  } catch (error) {
    retry.signal.throwIfAborted();
    if (error instanceof HubError) throw error;
    throw new HubError(`${hub.endpoint} does not answer as a hub does: check HF_ENDPOINT`);
  }
}

async function ask(hub: Hub, retry: RetryOptions): Promise<Listing> {
  // Loading it takes longer than the rest of the program: only a pull pays for it.
  const { listFiles, modelInfo } = await import("@huggingface/hub");
  const { endpoint: hubUrl, repo, revision } = hub;
  const fetch = fetchOf(hub, retry);
  const info = { hubUrl, fetch, name: repo, revision, additionalFields: ["sha" as const] };
  const { sha: commit } = await modelInfo(info);
  if (!isCommit(commit)) throw new HubError(`${hubUrl} names no commit for ${repo}`);

  const files: RepoFile[] = [];
  for await (const entry of listFiles({ hubUrl, fetch, repo, revision: commit, recursive: true })) {
    const { type, path, size, oid, lfs } = entry;
    if (type !== "file") continue;
    const id: BlobId = lfs
      ? { kind: "sha256", checksum: lfs.oid, bytes: lfs.size }
      : { kind: "git-sha1", checksum: oid ?? "", bytes: size };
    files.push({ path, id });
  }
  return { commit, files };
}

/** With the token (the library takes none but the hub's own kind), another try, and a limit of time. */
function fetchOf(hub: Hub, retry: RetryOptions): typeof fetch {
  const answer = (url: string | URL | Request, init?: RequestInit) =>
    retrying(retry, async () => {
      const signal = AbortSignal.any([retry.signal, AbortSignal.timeout(retry.policy.stallMs)]);
      const response = await request(hub, String(url), { ...init, signal });
      const text = await response.text().catch((error: unknown) => {
        throw broken(hub, error);
      });
      return new Response(text, { status: response.status, headers: response.headers });
    });
  return Object.assign(answer, { preconnect: fetch.preconnect });
}

/** The hub's words become paths: none may lead out of the repo's folder. */
export function checkFile(hub: Hub, { path, id }: RepoFile): void {
  const isSound =
    isRelativePath(path) &&
    (id.kind === "sha256" ? /^[0-9a-f]{64}$/ : /^[0-9a-f]{40}$/).test(id.checksum) &&
    Number.isSafeInteger(id.bytes) &&
    id.bytes >= 0;
  if (!isSound) throw new HubError(`${hub.repo} lists a file that cannot be kept: ${quoted(path)}`);
}
