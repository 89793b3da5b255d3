// Reads a request's body as a JSON object, or rejects it. Nothing beyond the limit is kept, and a body that
// JSON.parse would take long for is rejected before: parsing blocks the event loop.
import type { Context } from "hono";
import type { z } from "zod";
import type { Settings } from "../config/settings.ts";
import { ApiError, badRequest, ClientGoneError } from "./errors.ts";
import { JsonStructure } from "./json-structure.ts";

/** The body of a request, validated by its schema. */
export async function readRequest<T extends z.ZodType>(
  c: Context,
  { maxBodySize }: Pick<Settings, "maxBodySize">,
  schema: T,
): Promise<z.output<T>> {
  return schema.parse(await readJson(c.req.raw, maxBodySize));
}

export async function readJson(
  request: Request,
  limitBytes: number,
): Promise<Record<string, unknown>> {
  if (!/^application\/([\w.-]+\+)?json\s*(;|$)/i.test(request.headers.get("content-type") ?? "")) {
    throw new ApiError(415, "The content type has to be application/json.");
  }
  if (!/^(identity)?$/i.test(request.headers.get("content-encoding") ?? "")) {
    throw new ApiError(
      415,
      "The body must not be compressed: Content-Encoding has to be identity.",
    );
  }
  const bytes = await readBytes(request, limitBytes);
  if (bytes.length === 0) throw badRequest(undefined, "The body is empty.");
  await yieldIfLong(bytes);
  const text = decode(bytes);
  await yieldIfLong(bytes);
  const value = parse(text);
  await yieldIfLong(bytes);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw badRequest(undefined, "The body has to be a JSON object.");
  }
  return value as Record<string, unknown>;
}

/** Lets other requests run between the slow steps of a long body. */
async function yieldIfLong(bytes: Uint8Array): Promise<void> {
  if (bytes.length > 2 ** 16) await new Promise((resolve) => setImmediate(resolve));
}

async function readBytes(request: Request, limitBytes: number): Promise<Uint8Array> {
  const { headers, body, signal } = request;
  const tooLarge = () => new ApiError(413, `The body is larger than ${limitBytes} bytes.`);
  if (Number(headers.get("content-length")) > limitBytes) throw tooLarge();
  // Tiny chunks are not kept as objects of their own.
  const sink = new Bun.ArrayBufferSink();
  sink.start({ asUint8Array: true });
  const structure = new JsonStructure();
  let length = 0;
  try {
    // Leaving the loop cancels the stream.
    for await (const chunk of body ?? []) {
      length += chunk.length;
      if (length > limitBytes) throw tooLarge();
      structure.check(chunk);
      sink.write(chunk);
    }
  } catch (error) {
    throw signal.aborted ? new ClientGoneError() : error;
  }
  return sink.end() as Uint8Array;
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw badRequest(undefined, "The body is not valid UTF-8.");
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw badRequest(undefined, "The body is not valid JSON.");
  }
}
