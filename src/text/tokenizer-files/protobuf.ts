// Reads the protocol buffer wire format, as far as SentencePiece models use it. Files are untrusted: a length beyond
// the end of its message is an error.
import { LoadError } from "../../files/load-error.ts";

/** Value of one field; messages, strings and bytes are all bytes. */
export type ProtobufValue = number | Uint8Array;

const MAX_VARINT_BYTES = 10;

/** Yields the fields of a message in file order, each with its number. */
export function* protobufFields(bytes: Uint8Array): Generator<readonly [number, ProtobufValue]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;

  function take(count: number): number {
    const start = at;
    if (!(count <= bytes.length - at)) throw new LoadError("a field is longer than the file");
    at += count;
    return start;
  }

  /** Reads a varint, exact up to 2^53. Larger ones occur only in skipped fields or as invalid lengths. */
  function varint(): number {
    let value = 0;
    for (let i = 0; i < MAX_VARINT_BYTES; i++) {
      const byte = bytes[take(1)]!;
      value += (byte & 0x7f) * 2 ** (7 * i);
      if (byte < 0x80) return value;
    }
    throw new LoadError(`a varint is longer than ${MAX_VARINT_BYTES} bytes`);
  }

  while (at < bytes.length) {
    const tag = varint();
    const field = Math.floor(tag / 8);
    switch (tag % 8) {
      case 0:
        yield [field, varint()];
        break;
      case 1:
        yield [field, view.getFloat64(take(8), true)];
        break;
      case 2: {
        const length = varint();
        const start = take(length);
        yield [field, bytes.subarray(start, start + length)];
        break;
      }
      case 5:
        yield [field, view.getFloat32(take(4), true)];
        break;
      default:
        throw new LoadError(`field ${field} has the unknown wire type ${tag % 8}`);
    }
  }
}
