// Reads a request's body as a JSON object, or rejects it. Nothing beyond the limit is kept, and a body that
// JSON.parse would take long for is rejected before: parsing blocks the event loop.
import type { Context } from "hono";
import type { z } from "zod";
import type { Settings } from "../config/settings.ts";
import { ApiError, badRequest, ClientGoneError } from "./errors.ts";

const MAX_DEPTH = 128;
/** Each takes JSON.parse up to a microsecond. */
const MAX_STRINGS = 2 ** 17;
/** Elements, fields, arrays and objects: mostly token ids. */
const MAX_VALUES = 2 ** 20;
/** More than a body of the default size has if all its characters are written as \uXXXX. */
const MAX_ESCAPES = 2 ** 22;
/** Digits or whitespace between two strings, commas or brackets. */
const MAX_RUN = 2 ** 16;

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
  checkStructure(bytes);
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
  let length = 0;
  try {
    // Leaving the loop cancels the stream.
    for await (const chunk of body ?? []) {
      length += chunk.length;
      if (length > limitBytes) throw tooLarge();
      sink.write(chunk);
    }
  } catch (error) {
    throw signal.aborted ? new ClientGoneError() : error;
  }
  return sink.end() as Uint8Array;
}

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
const [STRING, COMMA, BEGIN, END] = [1, 2, 3, 4];
/** The kind of each byte; 0 for all others. */
const marks = new Uint8Array(256);
for (const [mark, kind] of Object.entries({
  '"': STRING,
  ",": COMMA,
  "[": BEGIN,
  "{": BEGIN,
  "]": END,
  "}": END,
})) {
  marks[mark.charCodeAt(0)] = kind;
}

function checkStructure(bytes: Uint8Array): void {
  const { length } = bytes;
  let [depth, strings, values, escapes] = [0, 0, 0, 0];
  let run = 0;
  for (let i = 0; i < length; i++) {
    const mark = marks[bytes[i]!]!;
    if (mark === 0) {
      if (++run > MAX_RUN) throw tooMuch(`has more than ${MAX_RUN} digits or spaces in a row`);
      continue;
    }
    run = 0;
    if (mark === STRING) {
      if (++strings > MAX_STRINGS) throw tooMuch(`has more than ${MAX_STRINGS} strings`);
      for (i++; i < length; i++) {
        const byte = bytes[i]!;
        if (byte === QUOTE) break;
        if (byte !== BACKSLASH) continue;
        i++; // An escaped quote does not end the string.
        if (++escapes > MAX_ESCAPES) throw tooMuch(`has more than ${MAX_ESCAPES} escapes`);
      }
    } else if (mark === END) {
      depth--;
    } else {
      if (++values > MAX_VALUES) throw tooMuch(`has more than ${MAX_VALUES} values`);
      if (mark === BEGIN && ++depth > MAX_DEPTH) {
        throw tooMuch(`nests deeper than ${MAX_DEPTH} levels`);
      }
    }
  }
}

const tooMuch = (what: string) => badRequest(undefined, `The body ${what}.`);

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
