// Reads part of a file on the hub into memory.
import { continuesAt } from "./download.ts";
import {
  broken,
  type Hub,
  type RetryOptions,
  request,
  retrying,
  TransientError,
} from "./request.ts";

export type FilePart = { readonly from: number; readonly bytes: number };

/** Reads a range of bytes that the file must contain. `url`: from `fileUrl`. */
export async function readPart(
  hub: Hub,
  url: string,
  { from, bytes }: FilePart,
  retry: RetryOptions,
): Promise<Uint8Array> {
  if (bytes === 0) return new Uint8Array();
  return await retrying(retry, async () => {
    const signal = AbortSignal.any([retry.signal, AbortSignal.timeout(retry.policy.stallMs)]);
    // Requests the response uncompressed, so that its bytes are those of the file.
    const headers = { "Accept-Encoding": "identity", Range: `bytes=${from}-${from + bytes - 1}` };
    const response = await request(hub, url, { headers, signal });
    // A server that ignores Range headers sends the file from its start, so the bytes before the range are skipped.
    let skipped = continuesAt(hub, response, from) ? 0 : from;
    const part = new Uint8Array(bytes);
    let done = 0;
    try {
      for await (const chunk of response.body ?? []) {
        const used = chunk.subarray(Math.min(skipped, chunk.length)).subarray(0, bytes - done);
        skipped -= Math.min(skipped, chunk.length);
        part.set(used, done);
        done += used.length;
        if (done === bytes) break; // leaving the loop cancels the rest of the response
      }
    } catch (error) {
      throw broken(hub, error);
    }
    if (done < bytes) throw new TransientError(`${hub.endpoint} sent ${done} bytes of ${bytes}`);
    return part;
  });
}

export function fileUrl({ endpoint, repo }: Hub, commit: string, path: string): string {
  const encoded = path.split("/").map(encodeURIComponent).join("/");
  return `${endpoint}/${repo}/resolve/${commit}/${encoded}`;
}
