// The input file of a batch: one request per line, as a JSON object. All lines are validated before the first is
// answered; a request's body is validated when its line is answered, as for any client.
import { createReadStream } from "node:fs";
import { open } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { BatchLine, LineFault } from "./batch.ts";
import { fieldSpan } from "./field-span.ts";

/** Maximum faults that are reported; validation stops there. */
const MAX_FAULTS = 100;
const MAX_CUSTOM_ID = 512;

export type InputRules = {
  /** Endpoint that all lines must have; undefined allows any of `endpoints`. */
  endpoint: string | undefined;
  endpoints: readonly string[];
  maxLines: number;
  maxLineBytes: number;
  /** Parses a JSON text; returns the value, a problem, or the delay before a retry. */
  parse(bytes: Uint8Array<ArrayBuffer>): Promise<Parsed | { retryMs: number }>;
};

type Parsed = { value: unknown } | { problem: string };

export class BatchInput {
  readonly faults: LineFault[] = [];
  readonly #path: string;
  readonly #rules: InputRules;
  readonly #customIds = new Set<string>();
  #model: unknown;

  constructor(path: string, rules: InputRules) {
    this.#path = path;
    this.#rules = rules;
  }

  /** Yields the valid lines, and adds the faults of the others to `faults`. */
  async *lines(signal: AbortSignal): AsyncGenerator<BatchLine> {
    const { maxLineBytes, maxLines } = this.#rules;
    let count = 0;
    for await (const raw of rawLines(this.#path, maxLineBytes, signal)) {
      if (raw.bytes !== undefined && isBlank(raw.bytes)) continue;
      count += 1;
      if (count > maxLines) {
        this.#fault(
          null,
          null,
          "too_many_requests",
          `The file has more than ${maxLines} requests.`,
        );
        return;
      }
      const line = raw.bytes
        ? await this.#checked(raw.number, raw.offset, raw.bytes, signal)
        : this.#fault(
            raw.number,
            null,
            "line_too_large",
            `The line is longer than ${maxLineBytes} bytes.`,
          );
      if (line) yield line;
      if (this.faults.length >= MAX_FAULTS) return;
    }
    if (count === 0) this.#fault(null, null, "empty_file", "The file has no requests.");
  }

  async #checked(
    number: number,
    offset: number,
    bytes: Uint8Array<ArrayBuffer>,
    signal: AbortSignal,
  ): Promise<BatchLine | undefined> {
    const parsed = await this.#parsed(bytes, signal);
    if ("problem" in parsed) {
      return this.#fault(number, null, "invalid_json_line", parsed.problem);
    }
    const { value } = parsed;
    if (!isObject(value)) {
      return this.#fault(number, null, "invalid_json_line", "The line is not a JSON object.");
    }
    const wrong = this.#wrongField(value);
    if (wrong) return this.#fault(number, wrong.param, wrong.code, wrong.message);
    const { custom_id: customId, url } = value as { custom_id: string; url: string };
    this.#customIds.add(customId);
    const { start, end } = fieldSpan(bytes, "body")!;
    return { line: number, customId, endpoint: url, offset: offset + start, length: end - start };
  }

  async #parsed(bytes: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<Parsed> {
    for (;;) {
      const parsed = await this.#rules.parse(bytes);
      if (!("retryMs" in parsed)) return parsed;
      await sleep(parsed.retryMs, undefined, { signal });
    }
  }

  #wrongField(value: Record<string, unknown>): Omit<LineFault, "line"> | undefined {
    const { custom_id: customId, method, url, body } = value;
    const { endpoint, endpoints } = this.#rules;
    const missing = ["custom_id", "method", "url", "body"].find((name) => value[name] == null);
    if (missing !== undefined) {
      const message = `Missing required parameter: '${missing}'.`;
      return { param: missing, code: "missing_required_parameter", message };
    }
    const wrong = (param: string, message: string, code = "invalid_value") => ({
      param,
      code,
      message: `Invalid '${param}': ${message}.`,
    });
    if (typeof customId !== "string" || customId === "" || customId.length > MAX_CUSTOM_ID) {
      return wrong("custom_id", `expected a string of 1 to ${MAX_CUSTOM_ID} characters`);
    }
    if (this.#customIds.has(customId)) {
      return wrong("custom_id", "an earlier line has the same", "duplicate_custom_id");
    }
    if (method !== "POST") return wrong("method", "expected POST", "invalid_method");
    if (endpoint !== undefined && url !== endpoint) {
      return wrong("url", "expected the endpoint of the batch", "invalid_url");
    }
    if (typeof url !== "string" || !endpoints.includes(url)) {
      return wrong("url", `expected one of ${endpoints.join(", ")}`, "invalid_url");
    }
    if (!isObject(body)) return wrong("body", "expected an object");
    if (body.stream === true) return wrong("body.stream", "batches cannot stream");
    // All lines must name the same model, as in OpenAI's API; several would be loaded and unloaded line by line.
    const model = body.model ?? "default";
    this.#model ??= model;
    if (model === this.#model) return undefined;
    return wrong("body.model", "expected the model of the first line", "mismatched_model");
  }

  #fault(line: number | null, param: string | null, code: string, message: string): undefined {
    this.faults.push({ code, message, line, param });
  }
}

/** Reads a line's request body verbatim. */
export async function readBody(
  path: string,
  { offset, length }: BatchLine,
): Promise<Uint8Array<ArrayBuffer>> {
  await using file = await open(path);
  const bytes = new Uint8Array(length);
  const { bytesRead } = await file.read(bytes, 0, length, offset);
  if (bytesRead < length) throw new Error("the input file has become shorter");
  return bytes;
}

type RawLine = {
  number: number;
  offset: number;
  /** The line's bytes; undefined if it is too long. */
  bytes: Uint8Array<ArrayBuffer> | undefined;
};

const NEW_LINE = 0x0a;

/** Yields the lines of the file; skips the bytes of lines that are too long, without buffering them. */
async function* rawLines(
  path: string,
  maxBytes: number,
  signal: AbortSignal,
): AsyncGenerator<RawLine> {
  let [number, offset, length] = [1, 0, 0];
  let pieces: Buffer[] = [];
  const keep = (piece: Buffer) => {
    length += piece.length;
    if (length <= maxBytes) pieces.push(piece);
    else pieces = [];
  };
  const line = (): RawLine => ({
    number,
    offset,
    bytes: length > maxBytes ? undefined : new Uint8Array(Buffer.concat(pieces)),
  });
  for await (const chunk of createReadStream(path, { signal }) as AsyncIterable<Buffer>) {
    let start = 0;
    for (;;) {
      const end = chunk.indexOf(NEW_LINE, start);
      keep(chunk.subarray(start, end < 0 ? chunk.length : end));
      if (end < 0) break;
      yield line();
      offset += length + 1;
      number += 1;
      length = 0;
      pieces = [];
      start = end + 1;
    }
  }
  if (length > 0) yield line();
}

function isBlank(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0x20 || byte === 0x0d || byte === 0x09);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
