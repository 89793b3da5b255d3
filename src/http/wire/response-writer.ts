// Writes responses. A response with `Transfer-Encoding: chunked` is streamed; any other is written whole, with its
// length.
import { STATUS_CODES } from "node:http";
import type { RequestHead } from "./request-head.ts";
import type { SocketStream } from "./socket-stream.ts";

const NOTHING = new Uint8Array();
const LAST_CHUNK = Buffer.from("0\r\n\r\n");

/** Writes a response; returns whether the connection can be used for another one. */
export async function writeResponse(
  stream: SocketStream,
  request: Pick<RequestHead, "method" | "isHttp10" | "keepAlive">,
  response: Response,
): Promise<boolean> {
  if (request.method === "HEAD" || response.status === 204 || response.status === 304) {
    await response.body?.cancel();
    return (await stream.write(headBytes(response, request))) && request.keepAlive;
  }
  if (response.headers.has("transfer-encoding")) return writeStreamed(stream, request, response);
  const body = await response.bytes();
  response.headers.set("content-length", String(body.length));
  const bytes = Buffer.concat([headBytes(response, request), body]);
  return (await stream.write(bytes)) && request.keepAlive;
}

async function writeStreamed(
  stream: SocketStream,
  request: Pick<RequestHead, "isHttp10" | "keepAlive">,
  response: Response,
): Promise<boolean> {
  const { isHttp10 } = request;
  // HTTP/1.0 has no chunks; the end of the connection ends the body.
  if (isHttp10) response.headers.delete("transfer-encoding");
  const keepAlive = request.keepAlive && !isHttp10;
  const reader = response.body!.getReader();
  // The head is sent together with the first bytes of the body.
  let head: Buffer | undefined = headBytes(response, { isHttp10, keepAlive });
  try {
    for (;;) {
      const { done, value = NOTHING } = await reader.read();
      // Empty pieces are skipped, because an empty chunk would end the body.
      if (!done && value.length === 0) continue;
      const piece = isHttp10 ? value : done ? LAST_CHUNK : chunkOf(value);
      if (!(await stream.write(head ? Buffer.concat([head, piece]) : piece))) break;
      if (done) return keepAlive;
      head = undefined;
    }
    await reader.cancel();
  } catch {
    // Resets the connection, so that the client notices that the body is incomplete.
    stream.destroy();
  }
  return false;
}

function chunkOf(payload: Uint8Array): Buffer {
  const size = `${payload.length.toString(16)}\r\n`;
  const chunk = Buffer.allocUnsafe(size.length + payload.length + 2);
  chunk.write(size, "latin1");
  chunk.set(payload, size.length);
  chunk.write("\r\n", size.length + payload.length, "latin1");
  return chunk;
}

function headBytes(
  { status, headers }: Response,
  { isHttp10, keepAlive }: { isHttp10: boolean; keepAlive: boolean },
): Buffer {
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ""}\r\nDate: ${new Date().toUTCString()}\r\n`;
  if (!keepAlive) text += "Connection: close\r\n";
  else if (isHttp10) text += "Connection: keep-alive\r\n";
  for (const [name, value] of headers) text += `${name}: ${value}\r\n`;
  return Buffer.from(`${text}\r\n`, "latin1");
}
