// Downloads one file from the hub to the cache's blobs: resumes an earlier pull, retries after connection errors, and
// keeps the file only with the right checksum.
import { HubError } from "./hub-error.ts";
import { type BlobId, ChecksumError, PartialBlob } from "./partial-blob.ts";
import {
  broken,
  type Hub,
  type RetryOptions,
  request,
  retrying,
  TransientError,
} from "./request.ts";

export type Download = {
  readonly id: BlobId;
  /** The file's path in the repo. */
  readonly path: string;
  readonly url: string;
};

export type DownloadOptions = RetryOptions & {
  /** Called with the total bytes of the file so far (`bytes`) and those since the last call (`newBytes`). */
  onBytes(bytes: number, newBytes: number): void;
};

export async function download(
  hub: Hub,
  file: Download,
  blobs: string,
  options: DownloadOptions,
): Promise<void> {
  for (;;) {
    const blob = await PartialBlob.open(file.id, blobs);
    try {
      options.onBytes(blob.bytes, 0);
      const all = () => receiveAll(hub, file.url, blob, options);
      await retrying(options, all, () => blob.bytes);
      await blob.finish();
      return;
    } catch (error) {
      if (!(error instanceof ChecksumError)) throw error;
      await blob.discard();
      // The bytes of an earlier pull may be wrong, so the download is retried once from the start.
      if (blob.hasOldBytes) continue;
      throw new HubError(
        `${file.path} differs from the listing of the hub: ${error.message}; pull it again`,
      );
    } finally {
      await blob.close();
    }
  }
}

async function receiveAll(
  hub: Hub,
  url: string,
  blob: PartialBlob,
  { policy, signal, onBytes }: DownloadOptions,
): Promise<void> {
  if (blob.bytes === blob.id.bytes) return;
  const stall = new AbortController();
  const stalled = () => stall.abort(new DOMException("stalled", "TimeoutError"));
  const timer = setTimeout(stalled, policy.stallMs);
  try {
    // Requests the response uncompressed, so that its bytes are those of the file.
    const headers: Record<string, string> = { "Accept-Encoding": "identity" };
    if (blob.bytes > 0) headers.Range = `bytes=${blob.bytes}-`;
    const response = await request(hub, url, {
      headers,
      signal: AbortSignal.any([signal, stall.signal]),
    });
    if (!continuesAt(hub, response, blob.bytes)) await blob.restart();
    const reader = (response.body ?? new Blob().stream()).getReader();
    try {
      for (;;) {
        const { value } = await reader.read().catch((error: unknown) => {
          throw broken(hub, error);
        });
        if (!value) break;
        timer.refresh();
        await blob.append(value);
        onBytes(blob.bytes, value.length);
      }
    } finally {
      await reader.cancel().catch(() => {}); // the stream is broken or longer than listed
    }
  } finally {
    clearTimeout(timer);
  }
  if (blob.bytes < blob.id.bytes) {
    throw new TransientError(`${hub.endpoint} sent ${blob.bytes} bytes of ${blob.id.bytes}`);
  }
}

/** Returns whether the response starts at `offset`: servers may ignore a Range header and send the whole file. */
export function continuesAt(hub: Hub, response: Response, offset: number): boolean {
  if (response.status !== 206) return offset === 0;
  const [, start] = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "") ?? [];
  if (Number(start) === offset) return true;
  const part = start === undefined ? "an unknown part" : `bytes from ${start} on`;
  throw new HubError(`${hub.endpoint} sent ${part}, expected bytes from ${offset} on`);
}
