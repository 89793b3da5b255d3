// Reads unaligned numbers from the bytes of a GGUF block.

let halfTable: Float32Array | undefined;

/** Returns a table of all f16 values, indexed by their bits. */
export function halves(): Float32Array {
  if (!halfTable) {
    const bits = Uint16Array.from({ length: 1 << 16 }, (_, i) => i);
    halfTable = new Float32Array(new Float16Array(bits.buffer));
  }
  return halfTable;
}

export function halfAt(half: Float32Array, source: Uint8Array, at: number): number {
  return half[source[at]! | (source[at + 1]! << 8)]!;
}

export function shortAt(source: Uint8Array, at: number): number {
  return source[at]! | (source[at + 1]! << 8);
}

export function wordAt(source: Uint8Array, at: number): number {
  return source[at]! | (source[at + 1]! << 8) | (source[at + 2]! << 16) | (source[at + 3]! << 24);
}

export function signed(byte: number): number {
  return (byte << 24) >> 24;
}

/** Decodes the block at offset `at` into `target`, starting at index `to`. */
export type BlockDecoder = (
  source: Uint8Array,
  at: number,
  target: Float32Array,
  to: number,
  half: Float32Array,
) => void;
