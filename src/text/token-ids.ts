// Where encoders write token ids: an array for ordinary texts, or a buffer that grows in place for long ones.

/** Appended to; a shorter `length` drops the last ones. */
export interface TokenIds {
  push(id: number): unknown;
  length: number;
}

const FIRST_CAPACITY = 2 ** 14;

/** Takes 4 bytes an id. An array takes twice as many, and twice that again while it grows. */
export class TokenIdBuffer implements TokenIds {
  readonly #buffer: ArrayBuffer;
  #ids: Uint32Array;
  length = 0;

  constructor(capacity: number) {
    const maxByteLength = 4 * capacity;
    this.#buffer = new ArrayBuffer(Math.min(4 * FIRST_CAPACITY, maxByteLength), { maxByteLength });
    this.#ids = new Uint32Array(this.#buffer);
  }

  push(id: number): void {
    if (this.length === this.#ids.length) this.#grow();
    this.#ids[this.length++] = id;
  }

  /** The ids as an array of their own; the buffer is empty afterwards. */
  take(): Uint32Array<ArrayBuffer> {
    return new Uint32Array(this.#buffer.transferToFixedLength(4 * this.length));
  }

  #grow(): void {
    const { byteLength, maxByteLength } = this.#buffer;
    if (byteLength === maxByteLength) throw new RangeError("more token ids than there is room for");
    this.#buffer.resize(Math.min(2 * byteLength, maxByteLength));
    this.#ids = new Uint32Array(this.#buffer);
  }
}
