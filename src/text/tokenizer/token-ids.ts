// Destination of token ids: an array for ordinary texts, or a buffer that grows in place for long ones.

/** A list of token ids. Setting a smaller `length` truncates it. */
export interface TokenIds {
  push(id: number): unknown;
  at(index: number): number | undefined;
  length: number;
}

const FIRST_CAPACITY = 2 ** 14;

/** A buffer of token ids, 4 bytes each. An array takes 8 bytes per id, and 16 while it grows. */
export class TokenIdBuffer implements TokenIds {
  #buffer: ArrayBuffer;
  #ids: Uint32Array;
  length = 0;

  /** `expected`: capacity that is reserved; growth beyond it copies. */
  constructor(expected: number) {
    const maxByteLength = 4 * Math.max(expected, FIRST_CAPACITY);
    this.#buffer = new ArrayBuffer(4 * FIRST_CAPACITY, { maxByteLength });
    this.#ids = new Uint32Array(this.#buffer);
  }

  push(id: number): void {
    if (this.length === this.#ids.length) this.#grow();
    this.#ids[this.length++] = id;
  }

  at(index: number): number | undefined {
    return index < this.length ? this.#ids[index] : undefined;
  }

  /** Returns the ids, trimmed to size. The buffer must not be used afterwards. */
  take(): Uint32Array<ArrayBuffer> {
    this.#buffer.resize(4 * this.length);
    return new Uint32Array(this.#buffer);
  }

  #grow(): void {
    const { byteLength, maxByteLength } = this.#buffer;
    if (byteLength < maxByteLength) {
      this.#buffer.resize(Math.min(2 * byteLength, maxByteLength));
      this.#ids = new Uint32Array(this.#buffer);
    } else {
      const before = this.#ids;
      this.#buffer = new ArrayBuffer(2 * byteLength, { maxByteLength: 4 * byteLength });
      this.#ids = new Uint32Array(this.#buffer);
      this.#ids.set(before);
    }
  }
}

/** Runs a generator to its end. */
export function finish<T>(steps: Generator<void, T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}
