// Checks the structure of a JSON text as it arrives, to reject texts that JSON.parse would take too long for.
import { badRequest } from "./errors.ts";

const MAX_DEPTH = 128;
/** Maximum strings in a body; each takes JSON.parse up to a microsecond. */
const MAX_STRINGS = 2 ** 17;
/** Maximum elements, fields, arrays and objects in a body; most are token ids. */
const MAX_VALUES = 2 ** 20;
/** Maximum escapes in a body; at six characters (\uXXXX) each, a body of the default maximum size has fewer. */
const MAX_ESCAPES = 2 ** 22;
/** JSON.parse takes a few ms at these sizes: 1 to 2 ns per byte, about 30 ns per escape, up to 100 ns per value. */
const [LONG_BYTES, LONG_ESCAPES, LONG_VALUES] = [2 ** 22, 2 ** 18, 2 ** 17];
/** Maximum consecutive bytes of digits or whitespace outside strings. */
const MAX_RUN = 2 ** 16;

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
const [STRING, COMMA, BEGIN, END] = [1, 2, 3, 4];
/** Maps each byte value to its role in the structure of JSON (STRING, COMMA, ...); 0 for all other bytes. */
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
  /** Whether the next byte is escaped, so that a quote does not end the string. */
  #isEscaped = false;

  /** Whether JSON.parse would block the event loop for more than a few milliseconds. */
  get isLong(): boolean {
    return this.#bytes > LONG_BYTES || this.#escapes > LONG_ESCAPES || this.#values > LONG_VALUES;
  }

  /** Checks the next bytes of the text; throws if the text exceeds a limit. */
  check(bytes: Uint8Array): void {
    this.#bytes += bytes.length;
    for (let at = 0; at < bytes.length; ) {
      at = this.#isInString ? this.#skipString(bytes, at) : this.#count(bytes, at);
    }
  }

  /** Returns the offset after the string, or the end of the bytes. */
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

  /** Counts values up to the next string; returns the offset after its opening quote, or the end of the bytes. */
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
