// One file from the hub into the cache's blobs: it goes on where an earlier pull stopped, tries again
// when the connection breaks, and is kept only with the right checksum.
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
  /** In the repo. */
  readonly path: string;
  readonly url: string;
};

export type DownloadOptions = RetryOptions & {
  /** How many of the file's bytes are here, and how many of those have come just now. */
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
      // The bytes that were there may be those of something else: once more, without them.
      if (blob.hasOldBytes) continue;
      throw new HubError(`${file.path} is not what the hub lists: ${error.message}; pull it again`);
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
    // A compressed answer could not be counted in the file's bytes.
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
      await reader.cancel().catch(() => {}); // it is broken already, or has more than was listed
    }
  } finally {
    clearTimeout(timer);
  }
  if (blob.bytes < blob.id.bytes) {
    throw new TransientError(`${hub.endpoint} sent ${blob.bytes} bytes of ${blob.id.bytes}`);
  }
}

/** A server may answer with the whole file where the end of it was asked for. */
export function continuesAt(hub: Hub, response: Response, offset: number): boolean {
  if (response.status !== 206) return offset === 0;
  const [, start] = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "") ?? [];
  if (Number(start) === offset) return true;
  const part = start === undefined ? "an unknown part" : `bytes from ${start} on`;
  throw new HubError(`${hub.endpoint} sent ${part}, expected bytes from ${offset} on`);
}
