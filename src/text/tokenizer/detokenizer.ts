// Decodes a stream of token ids into a stream of text. Bytes are buffered until a character is complete, so every
// chunk is valid text and the chunks concatenate to the decoding of the whole.
import { stripStart, type TokenDecoder } from "./decoder.ts";

export interface DetokenizerOptions {
  /** Whether to omit control tokens from the text. Default: true. */
  skipControl?: boolean;
  /** Control tokens that are kept although `skipControl` is set. */
  shown?: ReadonlySet<number | undefined>;
}

export class Detokenizer {
  readonly #decoder: TokenDecoder;
  readonly #skipControl: boolean;
  readonly #shown: ReadonlySet<number | undefined>;
  readonly #utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  #first = true;
  #stripsLeft: number;

  constructor(decoder: TokenDecoder, options: DetokenizerOptions = {}) {
    const { skipControl = true, shown = new Set() } = options;
    this.#decoder = decoder;
    this.#skipControl = skipControl;
    this.#shown = shown;
    this.#stripsLeft = decoder.strip?.count ?? 0;
  }

  /** Returns the text completed by these ids. */
  push(ids: Iterable<number>): string {
    let text = "";
    for (const id of ids) {
      const isShown = !this.#skipControl || this.#shown.has(id);
      if (!isShown && this.#decoder.isControl(id)) continue;
      const bytes = this.#decoder.bytes(id, this.#first);
      if (!bytes) continue;
      this.#first = false;
      text += this.#utf8.decode(bytes, { stream: true });
    }
    return this.#stripped(text);
  }

  /** Ends the stream; an incomplete character becomes U+FFFD. */
  flush(): string {
    return this.#stripped(this.#utf8.decode());
  }

  #stripped(text: string): string {
    const strip = this.#decoder.strip;
    if (!strip || this.#stripsLeft === 0) return text;
    const { text: rest, left } = stripStart(text, strip.char, this.#stripsLeft);
    this.#stripsLeft = left;
    return rest;
  }
}
