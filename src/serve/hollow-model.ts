// Creates a model of the hub without its weights: a temporary folder with its config files and the headers of its
// weights, in sparse files of the right size. Code that reads only headers treats it as a complete model.
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, parse } from "node:path";
import { readGguf } from "../files/gguf.ts";
import { readSafetensors, type SafetensorsTensor } from "../files/safetensors.ts";
import { formatBytes } from "../hub/bytes.ts";
import { fileUrl, readPart } from "../hub/file-part.ts";
import { codeOf, HubError } from "../hub/hub-error.ts";
import { checkFile, listRepo, type RepoFile } from "../hub/listing.ts";
import { filesOfModel } from "../hub/model-files.ts";
import type { RepoName } from "../hub/repo-name.ts";
import { defaultRetryPolicy, type RetryOptions } from "../hub/request.ts";
import { type Environment, hubEndpoint, hubToken } from "../hub/settings.ts";
import type { ModelSource } from "../hub/source.ts";

export type HollowModel = {
  readonly source: ModelSource;
  readonly folder: string;
  [Symbol.dispose](): void;
};

/** Bytes of a weight file that are downloaded first; most headers are smaller. */
const FIRST_BYTES = 2 ** 20;
/** Maximum bytes of a header, as in the code that reads headers. */
const MAX_HEADER_BYTES = 100_000_000;
const MAX_FILE_BYTES = 100_000_000;
const MAX_BYTES = 1_000_000_000;
const FILES_AT_ONCE = 4;
const ATTEMPTS = 3;

export async function hollowModel(
  name: string,
  { id: repo, revision = "main", file: wanted }: RepoName,
  env: Environment,
): Promise<HollowModel> {
  const hub = { endpoint: hubEndpoint(env), token: hubToken(env), repo, revision };
  const stop = new AbortController();
  const policy = { ...defaultRetryPolicy, attempts: ATTEMPTS };
  const retry: RetryOptions = { policy, signal: stop.signal, onRetry() {} };
  const { commit, files } = await listRepo(hub, retry);
  const paths = files.map(({ path }) => path);
  const chosen = new Set(filesOfModel(repo, paths, wanted === undefined ? {} : { file: wanted }));
  const needed = files.filter(({ path }) => chosen.has(path));
  for (const file of needed) checkFile(hub, file);
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-show-"));
  const dispose = () => rmSync(folder, { recursive: true, force: true });
  let left = MAX_BYTES;

  const part = async ({ path }: RepoFile, from: number, bytes: number) => {
    left -= bytes;
    if (left < 0)
      throw new HubError(
        `${repo} has more than ${formatBytes(MAX_BYTES)} of config files and headers`,
      );
    return await readPart(hub, fileUrl(hub, commit, path), { from, bytes }, retry);
  };
  /** Downloads a range of a file into the sparse file. */
  const bring = async (file: RepoFile, from: number, bytes: number) => {
    const brought = await part(file, from, bytes);
    writeFileSync(join(folder, file.path), brought, { flag: from === 0 ? "w" : "a" });
    return brought;
  };
  const shapes: Shapes = new Map();
  const bringFile = async (file: RepoFile) => {
    const { path, id } = file;
    const target = join(folder, path);
    mkdirSync(dirname(target), { recursive: true });
    if (path.endsWith(".safetensors")) {
      await bringSafetensors(file, bring);
      extend(target, id.bytes);
      await bringShapes(target, shapes, (from, bytes) => part(file, from, bytes));
    } else if (path.endsWith(".gguf")) await bringGguf(file, target, bring);
    else if (id.bytes <= MAX_FILE_BYTES) return void (await bring(file, 0, id.bytes));
    else throw new HubError(`${repo}: ${path} has ${formatBytes(id.bytes)}`);
    extend(target, id.bytes);
  };
  try {
    const queue = needed.values();
    const worker = async () => {
      for (const file of queue) await bringFile(file);
    };
    const workers = Array.from({ length: FILES_AT_ONCE }, () =>
      worker().catch((error: unknown) => stop.abort(error)),
    );
    await Promise.all(workers);
    stop.signal.throwIfAborted();
  } catch (error) {
    dispose();
    throw error;
  }
  const gguf = [...chosen].filter((path) => path.endsWith(".gguf")).sort()[0];
  const source: ModelSource =
    gguf === undefined
      ? { kind: "folder", path: folder, name }
      : { kind: "gguf", path: join(folder, gguf), name };
  return { source, folder, [Symbol.dispose]: dispose };
}

type Bring = (file: RepoFile, from: number, bytes: number) => Promise<Uint8Array>;

/** Downloads a header, whose length is in the first bytes; the file's reader reports an impossible length. */
async function bringSafetensors(file: RepoFile, bring: Bring): Promise<void> {
  const first = Math.min(FIRST_BYTES, file.id.bytes);
  const part = Buffer.from(await bring(file, 0, first));
  const end = first < 8 ? 0 : 8 + Number(part.readBigUInt64LE());
  if (end > first && end <= Math.min(file.id.bytes, MAX_HEADER_BYTES)) {
    await bring(file, first, end - first);
  }
}

/** Downloads of tensors that describe quantized matrices, by the tensor's name and the matrix's shape. */
type Shapes = Map<string, Promise<Uint8Array>>;

/** Suffixes of tensor names: of a tensor that describes a quantized matrix, and of the matrix itself. */
const DESCRIBING: Readonly<Record<string, string>> = {
  g_idx: "qweight",
  weight_shape: "weight_packed",
};
const MAX_DESCRIBING_BYTES = 2 ** 20;

/**
 * Downloads the tensors with the shape or column order of quantized matrices: GPTQ and compressed-tensors need them
 * before loading. Matrices of equal shape share a download, enough for a memory estimate.
 */
async function bringShapes(
  path: string,
  shapes: Shapes,
  part: (from: number, bytes: number) => Promise<Uint8Array>,
): Promise<void> {
  const tensors = tensorsOf(path);
  for (const [name, { dtype, shape, offset, bytes }] of tensors) {
    const [, stem, kind] = /^(.*\.)(g_idx|weight_shape)$/.exec(name) ?? [];
    if (kind === undefined || bytes > MAX_DESCRIBING_BYTES) continue;
    const matrix = tensors.get(stem + DESCRIBING[kind]!)?.shape;
    const key = JSON.stringify([kind, dtype, shape, matrix]);
    const found = shapes.getOrInsertComputed(key, () => part(offset, bytes));
    const file = openSync(path, "r+");
    try {
      writeSync(file, await found, 0, bytes, offset);
    } finally {
      closeSync(file);
    }
  }
}

/** Returns a header's tensors; none if the header is invalid, which is reported when the model is described. */
function tensorsOf(path: string): ReadonlyMap<string, SafetensorsTensor> {
  try {
    return readSafetensors(path).tensors;
  } catch {
    return new Map();
  }
}

/** Downloads a header, in ranges of increasing size, since it does not state its length. */
async function bringGguf(file: RepoFile, path: string, bring: Bring): Promise<void> {
  const most = Math.min(file.id.bytes, MAX_HEADER_BYTES);
  for (let done = 0, next = FIRST_BYTES; done < most; next *= 4) {
    const end = Math.min(next, most);
    await bring(file, done, end - done);
    done = end;
    extend(path, file.id.bytes);
    const isWhole = headerBytes(path) <= done;
    if (isWhole) return;
    truncateSync(path, done);
  }
}

/** Sets the size of the sparse file. */
function extend(path: string, bytes: number): void {
  try {
    truncateSync(path, bytes);
  } catch (error) {
    const { base, dir } = parse(path);
    throw new HubError(
      `${base} of ${formatBytes(bytes)} cannot be created as a sparse file in ${dir} (${codeOf(error)}): ` +
        "name a folder on another disk in TMPDIR",
    );
  }
}

/** Returns the offset of the first tensor; Infinity if the header cannot be read. */
function headerBytes(path: string): number {
  try {
    const { tensors } = readGguf(path);
    return Math.min(...[...tensors.values()].map(({ offset }) => offset));
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}
