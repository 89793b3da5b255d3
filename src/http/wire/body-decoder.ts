// Decodes a request body: finds its end and extracts the payload, which has either a declared length or comes in
// chunks. Works byte by byte, without a string per line, because a body may consist of one-byte chunks.
import { RequestFault } from "./request-fault.ts";
import type { BodyFraming } from "./request-head.ts";

const MAX_SIZE_DIGITS = 12;
/** Maximum length of a chunk extension. Extensions and trailers are ignored. */
const MAX_EXTENSION_BYTES = 256;
const MAX_TRAILER_BYTES = 2 ** 14;

const [TAB, LF, CR, SPACE, SEMICOLON, DELETE] = [0x09, 0x0a, 0x0d, 0x20, 0x3b, 0x7f];

/** The value of each hexadecimal digit. */
const digits = new Int8Array(256).fill(-1);
for (let value = 0; value < 16; value++) {
  for (const digit of [value.toString(16), value.toString(16).toUpperCase()]) {
    digits[digit.charCodeAt(0)] = value;
  }
}

type State =
  | "size"
  | "extension"
  | "size-end"
  | "payload"
  | "payload-cr"
  | "payload-lf"
  | "trailer-start"
  | "trailer"
  | "trailer-end"
  | "last-lf"
  | "done";

export class BodyDecoder {
  readonly #isChunked: boolean;
  #state: State;
  /** Payload bytes left in the body or in the current chunk. */
  #left: number;
  /** Bytes read so far of the current chunk size, chunk extension or trailers. */
  #count = 0;

  constructor(framing: BodyFraming) {
    this.#isChunked = framing.kind === "chunked";
    this.#left = framing.kind === "length" ? framing.bytes : 0;
    this.#state = this.#isChunked ? "size" : this.#left > 0 ? "payload" : "done";
  }

  get isDone(): boolean {
    return this.#state === "done";
  }

  /** Payload bytes left; undefined for chunked bodies. */
  get left(): number | undefined {
    return this.#isChunked && !this.isDone ? undefined : this.#left;
  }

  /**
   * Decodes the next bytes. The payload is moved to the start of `bytes`, because a buffer per chunk would make tiny
   * chunks expensive. `rest`: the bytes after the body.
   */
  decode(bytes: Buffer): { payload: Buffer; rest: Buffer } {
    let [at, length] = [0, 0];
    while (at < bytes.length && this.#state !== "done") {
      if (this.#state !== "payload") {
        this.#state = this.#next(bytes[at++]!);
        continue;
      }
      const end = Math.min(at + this.#left, bytes.length);
      this.#left -= end - at;
      if (at !== length) move(bytes, length, at, end);
      length += end - at;
      at = end;
      if (this.#left === 0) this.#state = this.#isChunked ? "payload-cr" : "done";
    }
    return { payload: bytes.subarray(0, length), rest: bytes.subarray(at) };
  }

  /** Returns the state after one byte outside the payload, such as a digit of a chunk size. */
  #next(byte: number): State {
    switch (this.#state) {
      case "size":
        return this.#nextOfSize(byte);
      case "extension":
        if (byte === CR) return "size-end";
        return this.#skipped(byte, MAX_EXTENSION_BYTES, "extension");
      case "size-end":
        this.#count = 0;
        return expected(byte, LF, this.#left > 0 ? "payload" : "trailer-start");
      case "payload-cr":
        return expected(byte, CR, "payload-lf");
      case "payload-lf":
        return expected(byte, LF, "size");
      case "trailer-start":
        if (byte === CR) return "last-lf";
        return this.#skipped(byte, MAX_TRAILER_BYTES, "trailer");
      case "trailer":
        if (byte === CR) return "trailer-end";
        return this.#skipped(byte, MAX_TRAILER_BYTES, "trailer");
      case "trailer-end":
        return expected(byte, LF, "trailer-start");
      default:
        return expected(byte, LF, "done");
    }
  }

  #nextOfSize(byte: number): State {
    const digit = digits[byte]!;
    if (digit >= 0 && this.#count < MAX_SIZE_DIGITS) {
      this.#count++;
      this.#left = this.#left * 16 + digit;
      return "size";
    }
    if (this.#count === 0) throw malformed();
    this.#count = 0;
    if (byte === CR) return "size-end";
    return expected(byte, SEMICOLON, "extension");
  }

  #skipped(byte: number, limit: number, state: State): State {
    const isControl = (byte < SPACE && byte !== TAB) || byte === DELETE;
    if (isControl || ++this.#count > limit) throw malformed();
    return state;
  }
}

/** Moves bytes within the buffer. A loop moves a few bytes faster than a native call. */
function move(bytes: Buffer, to: number, from: number, end: number): void {
  if (end - from > 16) bytes.copyWithin(to, from, end);
  else for (let i = from; i < end; i++) bytes[to + i - from] = bytes[i]!;
}

function expected(byte: number, wanted: number, state: State): State {
  if (byte !== wanted) throw malformed();
  return state;
}

function malformed(): RequestFault {
  return new RequestFault(400, "The chunks of the body are malformed.");
}
