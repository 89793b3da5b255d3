// Lists a repo of the hub: the commit of a revision, and its files with checksums. HF_ENDPOINT may be any server, so
// every response is bounded and validated.
import { z } from "zod";
import { HubError, quoted } from "./hub-error.ts";
import type { BlobId } from "./partial-blob.ts";
import { isCommit, isRelativePath } from "./repo-name.ts";
import { broken, type Hub, type RetryOptions, request, retrying } from "./request.ts";

export type RepoFile = { readonly path: string; readonly id: BlobId };
export type Listing = { readonly commit: string; readonly files: readonly RepoFile[] };

const MAX_PAGES = 100;
const MAX_FILES = 10_000;
const MAX_ANSWER_BYTES = 16 * 2 ** 20;

const Revision = z.object({ sha: z.string().refine(isCommit, "expected a commit") });
const size = z.int().min(0);
const Entry = z.looseObject({ type: z.string() });
const FileEntry = z.object({
  path: z.string().max(1024),
  size,
  oid: z.string(),
  lfs: z.object({ oid: z.string(), size }).nullish(),
});

export async function listRepo(hub: Hub, retry: RetryOptions): Promise<Listing> {
  const { endpoint, repo, revision } = hub;
  const api = `${endpoint}/api/models/${repo}`;
  const named = `${api}/revision/${encodeURIComponent(revision)}?expand=sha`;
  const { sha: commit } = parsed(hub, Revision, (await ask(hub, retry, named)).json);
  const files: RepoFile[] = [];
  let url: string | undefined = `${api}/tree/${commit}?recursive=true`;
  for (let pages = 0; url !== undefined; pages++) {
    if (pages === MAX_PAGES)
      throw new HubError(`${repo} lists its files on more than ${pages} pages`);
    const page = await ask(hub, retry, url);
    const entries = parsed(hub, z.array(Entry), page.json).filter(({ type }) => type === "file");
    for (const entry of entries) files.push(repoFile(parsed(hub, FileEntry, entry)));
    if (files.length > MAX_FILES) throw new HubError(`${repo} lists more than ${MAX_FILES} files`);
    url = page.next;
  }
  const bytes = files.reduce((sum, { id }) => sum + id.bytes, 0);
  if (Number.isSafeInteger(bytes)) return { commit, files };
  throw new HubError(`${repo} lists more bytes than any disk can hold`);
}

function repoFile({ path, size, oid, lfs }: z.infer<typeof FileEntry>): RepoFile {
  const id: BlobId = lfs
    ? { kind: "sha256", checksum: lfs.oid, bytes: lfs.size }
    : { kind: "git-sha1", checksum: oid, bytes: size };
  return { path, id };
}

/** Requests one page; returns its JSON and the URL of the next page. */
async function ask(
  hub: Hub,
  retry: RetryOptions,
  url: string,
): Promise<{ json: unknown; next: string | undefined }> {
  return await retrying(retry, async () => {
    const signal = AbortSignal.any([retry.signal, AbortSignal.timeout(retry.policy.stallMs)]);
    const response = await request(hub, url, { signal });
    const text = await readText(hub, response);
    return { json: jsonOf(hub, text), next: nextPage(hub, url, response) };
  });
}

async function readText(hub: Hub, response: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  try {
    for await (const chunk of response.body ?? []) {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > MAX_ANSWER_BYTES) throw notAHub(hub, `at most ${MAX_ANSWER_BYTES} bytes`);
    }
  } catch (error) {
    throw error instanceof HubError ? error : broken(hub, error);
  }
  return Buffer.concat(chunks).toString();
}

/** Returns the URL of the next page; throws if it has another origin, which would receive the token. */
function nextPage(hub: Hub, url: string, { headers }: Response): string | undefined {
  const [, next] = /<([^>]*)>\s*;\s*rel="next"/.exec(headers.get("Link") ?? "") ?? [];
  if (next === undefined) return undefined;
  const at = URL.canParse(next, url) ? new URL(next, url) : undefined;
  if (at?.origin === new URL(hub.endpoint).origin) return at.href;
  throw notAHub(hub, `the next page at its own address, not at ${quoted(next)}`);
}

function jsonOf(hub: Hub, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw notAHub(hub, "JSON");
  }
}

function parsed<T>(hub: Hub, schema: z.ZodType<T>, json: unknown): T {
  const { data, error } = schema.safeParse(json);
  if (!error) return data;
  const { path, message } = error.issues[0]!;
  const what = message.replace(/^.*expected /, "");
  throw notAHub(hub, path.length > 0 ? `${what} as ${path.join(".")}` : what);
}

function notAHub({ endpoint }: Hub, expected: string): HubError {
  return new HubError(
    `${endpoint} does not respond like a hub: expected ${expected}: check HF_ENDPOINT`,
  );
}

/** Throws if a file name from the hub, which becomes a path, would be outside the repo's folder. */
export function checkFile(hub: Hub, { path, id }: RepoFile): void {
  const isSound =
    isRelativePath(path) &&
    (id.kind === "sha256" ? /^[0-9a-f]{64}$/ : /^[0-9a-f]{40}$/).test(id.checksum);
  if (!isSound) throw new HubError(`${hub.repo} lists an invalid file name: ${quoted(path)}`);
}
