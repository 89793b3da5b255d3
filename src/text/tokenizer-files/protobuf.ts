// Reads the wire format of protocol buffers, as far as SentencePiece's models use it. Nothing in the file is
// trusted: a length that leads out of its message is an error.
import { LoadError } from "../../files/load-error.ts";

/** Of one field; a message, a text and bytes are all bytes. */
export type ProtobufValue = number | Uint8Array;

const MAX_VARINT_BYTES = 10;

/** The fields of a message in the file's order, each with its number. */
export function* protobufFields(bytes: Uint8Array): Generator<readonly [number, ProtobufValue]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;

  function take(count: number): number {
    const start = at;
    if (!(count <= bytes.length - at)) throw new LoadError("a field is longer than the file");
    at += count;
    return start;
  }

  /** Exact up to 2^53; a larger number is only skipped over, or too long. */
  function varint(): number {
    let value = 0;
    for (let i = 0; i < MAX_VARINT_BYTES; i++) {
      const byte = bytes[take(1)]!;
      value += (byte & 0x7f) * 2 ** (7 * i);
      if (byte < 0x80) return value;
    }
    throw new LoadError("a number takes too many bytes");
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
