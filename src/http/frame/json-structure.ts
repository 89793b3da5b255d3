// The structure of a JSON text, as it arrives: a text that JSON.parse would take long for is rejected.
import { badRequest } from "./errors.ts";

const MAX_DEPTH = 128;
/** Each takes JSON.parse up to a microsecond. */
const MAX_STRINGS = 2 ** 17;
/** Elements, fields, arrays and objects: mostly token ids. */
const MAX_VALUES = 2 ** 20;
/** More than a body of the default size has if all its characters are written as \uXXXX. */
const MAX_ESCAPES = 2 ** 22;
/** What JSON.parse takes some milliseconds for: a nanosecond or two a byte, some thirty an escape, up to a hundred a value. */
const [LONG_BYTES, LONG_ESCAPES, LONG_VALUES] = [2 ** 22, 2 ** 18, 2 ** 17];
/** Digits or whitespace between two strings, commas or brackets. */
const MAX_RUN = 2 ** 16;

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

export class JsonStructure {
  #bytes = 0;
  #depth = 0;
  #strings = 0;
  #values = 0;
  #escapes = 0;
  #run = 0;
  #isInString = false;
  /** The next byte is escaped: a quote would not end the string. */
  #isEscaped = false;

  /** Whether JSON.parse would block the event loop for more than some milliseconds. */
  get isLong(): boolean {
    return this.#bytes > LONG_BYTES || this.#escapes > LONG_ESCAPES || this.#values > LONG_VALUES;
  }

  /** Throws if the text is more than what is parsed. */
  check(bytes: Uint8Array): void {
    this.#bytes += bytes.length;
    for (let at = 0; at < bytes.length; ) {
      at = this.#isInString ? this.#skipString(bytes, at) : this.#count(bytes, at);
    }
  }

  /** Returns where the string ends, or the bytes do. */
  #skipString(bytes: Uint8Array, start: number): number {
    let at = start;
    if (this.#isEscaped) {
      this.#isEscaped = false;
      at++;
    }
    for (; at < bytes.length; at++) {
      const byte = bytes[at]!;
      if (byte === QUOTE) {
        this.#isInString = false;
        return at + 1;
      }
      if (byte !== BACKSLASH) continue;
      at++;
      if (++this.#escapes > MAX_ESCAPES) throw tooMuch(`has more than ${MAX_ESCAPES} escapes`);
    }
    this.#isEscaped = at > bytes.length;
    return bytes.length;
  }

  /** Returns where the next string begins, or the bytes end. */
  #count(bytes: Uint8Array, start: number): number {
    for (let at = start; at < bytes.length; at++) {
      const mark = marks[bytes[at]!]!;
      if (mark === 0) {
        if (++this.#run > MAX_RUN) {
          throw tooMuch(`has more than ${MAX_RUN} digits or spaces in a row`);
        }
        continue;
      }
      this.#run = 0;
      if (mark === STRING) {
        if (++this.#strings > MAX_STRINGS) throw tooMuch(`has more than ${MAX_STRINGS} strings`);
        this.#isInString = true;
        return at + 1;
      }
      if (mark === END) this.#depth--;
      else if (++this.#values > MAX_VALUES) throw tooMuch(`has more than ${MAX_VALUES} values`);
      if (mark === BEGIN && ++this.#depth > MAX_DEPTH) {
        throw tooMuch(`nests deeper than ${MAX_DEPTH} levels`);
      }
    }
    return bytes.length;
  }
}

const tooMuch = (what: string) => badRequest(undefined, `The body ${what}.`);
