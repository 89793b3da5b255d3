// Reads a request body as a JSON object, or rejects it. Nothing beyond the size limit is kept. JSON.parse blocks the
// event loop: bodies that would take too long are rejected, and long ones are parsed on the encoder thread.
import type { Context } from "hono";
import type { z } from "zod";
import { parseJson } from "../../text/encoder/json-text.ts";
import type { HttpEnv } from "./env.ts";
import { ApiError, badRequest, ClientGoneError } from "./errors.ts";
import { JsonStructure } from "./json-structure.ts";
import type { BodyReader } from "./serving.ts";

/** Returns the body of a request, validated by its schema. */
export async function readRequest<T extends z.ZodType>(
  c: Context<HttpEnv>,
  { settings, encoder }: BodyReader,
  schema: T,
): Promise<z.output<T>> {
  const { raw } = c.req;
  const client = { key: c.get("caller").name, signal: raw.signal, charge() {} };
  const parseLong = (bytes: Uint8Array<ArrayBuffer>) => encoder.parse(bytes, client);
  return schema.parse(await readJson(raw, settings.maxBodySize, parseLong));
}

export async function readJson(
  request: Request,
  limitBytes: number,
  parseLong: (bytes: Uint8Array<ArrayBuffer>) => Promise<unknown>,
): Promise<Record<string, unknown>> {
  if (!/^application\/([\w.-]+\+)?json\s*(;|$)/i.test(request.headers.get("content-type") ?? "")) {
    throw new ApiError(415, "The content type has to be application/json.");
  }
  refuseCompressed(request);
  const { bytes, isLong } = await readBytes(request, limitBytes);
  if (bytes.length === 0) throw badRequest(undefined, "The body is empty.");
  const value = isLong ? await unlessGone(request, parseLong(bytes)) : parseJson(bytes);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw badRequest(undefined, "The body has to be a JSON object.");
  }
  return value as Record<string, unknown>;
}

export function refuseCompressed({ headers }: Request): void {
  if (/^(identity)?$/i.test(headers.get("content-encoding") ?? "")) return;
  throw new ApiError(415, "The body must not be compressed: Content-Encoding has to be identity.");
}

type Body = { bytes: Uint8Array<ArrayBuffer>; isLong: boolean };

async function readBytes(request: Request, limitBytes: number): Promise<Body> {
  const { headers, body } = request;
  const tooLarge = () => new ApiError(413, `The body is larger than ${limitBytes} bytes.`);
  if (Number(headers.get("content-length")) > limitBytes) throw tooLarge();
  // Collected in one buffer, so that tiny chunks do not cost an object each.
  const sink = new Bun.ArrayBufferSink();
  sink.start({ asUint8Array: true });
  const structure = new JsonStructure();
  const read = async () => {
    let length = 0;
    // An exception in the loop cancels the stream.
    for await (const chunk of body ?? []) {
      length += chunk.length;
      if (length > limitBytes) throw tooLarge();
      structure.check(chunk);
      sink.write(chunk);
    }
  };
  await unlessGone(request, read());
  return { bytes: sink.end() as Uint8Array<ArrayBuffer>, isLong: structure.isLong };
}

/** Awaits the result, but throws ClientGoneError for any error after the client has disconnected. */
export async function unlessGone<T>({ signal }: Request, result: Promise<T>): Promise<T> {
  try {
    return await result;
  } catch (error) {
    throw signal.aborted ? new ClientGoneError() : error;
  }
}
