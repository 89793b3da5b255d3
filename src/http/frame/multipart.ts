// Parses multipart/form-data as a stream: files go to a sink piece by piece and are never held in memory.
import { ApiError, badRequest } from "./errors.ts";
import { refuseCompressed } from "./json-body.ts";

/** Receives the content of a file. */
export type FileSink = (piece: Uint8Array) => Promise<void>;

export type FormFile = { field: string; filename: string };

const MAX_PARTS = 32;
const MAX_HEAD_BYTES = 8192;
const MAX_FIELD_BYTES = 65_536;

/** Returns the fields of the form. `openFile` is called for each part with a file name. */
export async function readForm(
  request: Request,
  openFile: (file: FormFile) => FileSink,
): Promise<Map<string, string>> {
  const type = request.headers.get("content-type") ?? "";
  const [, quoted, plain] =
    /^multipart\/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(type) ?? [];
  const boundary = quoted ?? plain;
  if (boundary === undefined) {
    throw new ApiError(415, "The content type has to be multipart/form-data, with a boundary.");
  }
  refuseCompressed(request);
  const input = new FormInput(request.body ?? emptyBody());
  const fields = new Map<string, string>();
  // The search below includes a line break before the boundary, which the first boundary may lack.
  input.prepend("\r\n");
  await input.until(`\r\n--${boundary}`, MAX_HEAD_BYTES, ignored);
  for (let parts = 0; (await input.take(2)) === "\r\n"; parts++) {
    if (parts === MAX_PARTS) throw broken(`has more than ${MAX_PARTS} parts`);
    const { field, filename } = await partHead(input);
    if (filename !== undefined) {
      await input.until(
        `\r\n--${boundary}`,
        Number.POSITIVE_INFINITY,
        openFile({ field, filename }),
      );
    } else {
      const text = await input.textUntil(`\r\n--${boundary}`, MAX_FIELD_BYTES);
      if (fields.has(field)) throw badRequest(undefined, "A field of the form is there twice.");
      fields.set(field, text);
    }
  }
  // Content after the last part is meaningless.
  await input.rest();
  return fields;
}

async function partHead(input: FormInput): Promise<{ field: string; filename?: string }> {
  // Prepends a line break, so that the search finds an empty line even in a part without headers.
  input.prepend("\r\n");
  const head = await input.textUntil("\r\n\r\n", MAX_HEAD_BYTES);
  const disposition = /\r\ncontent-disposition:\s*form-data\s*;(.*)/i.exec(head)?.[1] ?? "";
  const field = parameter(disposition, "name");
  const filename = parameter(disposition, "filename");
  if (field === undefined) throw broken("has a part without a name");
  return { field, ...(filename !== undefined && { filename }) };
}

/** Returns a parameter, in which clients escape quotes as %22 or \", and non-ASCII text as `name*=utf-8''...`. */
function parameter(disposition: string, name: string): string | undefined {
  const start = `(?:^|[;\\s])${name}`;
  const [, coded] = new RegExp(`${start}\\*=utf-8''([^;\\s]+)`, "i").exec(disposition) ?? [];
  if (coded !== undefined && /^([^%]|%[\da-f]{2})+$/i.test(coded)) return decoded(coded);
  const pattern = new RegExp(`${start}=(?:"((?:[^"\\\\]|\\\\.)*)"|([^\\s;"]+))`, "i");
  const [, quoted, plain] = pattern.exec(disposition) ?? [];
  return plain ?? quoted?.replaceAll("%22", '"').replace(/\\(["\\])/g, "$1");
}

function decoded(text: string): string {
  const bytes = text.replace(/%(..)/g, (_, code: string) =>
    String.fromCharCode(Number.parseInt(code, 16)),
  );
  return Buffer.from(bytes, "latin1").toString();
}

const ignored: FileSink = async () => {};

/** Buffered input, split at delimiters. */
class FormInput {
  readonly #reader: AsyncIterator<Uint8Array>;
  #bytes = Buffer.alloc(0);

  constructor(body: AsyncIterable<Uint8Array>) {
    this.#reader = body[Symbol.asyncIterator]();
  }

  prepend(text: string): void {
    this.#bytes = Buffer.concat([Buffer.from(text), this.#bytes]);
  }

  async take(count: number): Promise<string> {
    while (this.#bytes.length < count) await this.#more();
    const text = this.#bytes.toString("latin1", 0, count);
    this.#bytes = this.#bytes.subarray(count);
    return text;
  }

  /** Passes all bytes before the delimiter to the sink and skips the delimiter. */
  async until(mark: string, maxBytes: number, sink: FileSink): Promise<void> {
    let length = 0;
    for (;;) {
      const at = this.#bytes.indexOf(mark);
      // Keeps the last bytes of the buffer, which may be the beginning of a delimiter.
      const end = at >= 0 ? at : Math.max(0, this.#bytes.length - mark.length + 1);
      length += end;
      if (length > maxBytes) throw broken("has a field or a header that is too long");
      if (end > 0) await sink(this.#bytes.subarray(0, end));
      this.#bytes = this.#bytes.subarray(at >= 0 ? at + mark.length : end);
      if (at >= 0) return;
      await this.#more();
    }
  }

  async textUntil(mark: string, maxBytes: number): Promise<string> {
    const pieces: Uint8Array[] = [];
    await this.until(mark, maxBytes, async (piece) => void pieces.push(piece.slice()));
    return Buffer.concat(pieces).toString();
  }

  async rest(): Promise<void> {
    let length = this.#bytes.length;
    for (;;) {
      const { done, value } = await this.#reader.next();
      if (done) return;
      length += value.length;
      if (length > MAX_HEAD_BYTES) throw broken("goes on after its end");
    }
  }

  async #more(): Promise<void> {
    const { done, value } = await this.#reader.next();
    if (done) throw broken("ends before it is complete");
    this.#bytes =
      this.#bytes.length === 0 ? Buffer.from(value) : Buffer.concat([this.#bytes, value]);
  }
}

async function* emptyBody(): AsyncGenerator<Uint8Array> {}

const broken = (what: string) => badRequest(undefined, `The form ${what}.`);
