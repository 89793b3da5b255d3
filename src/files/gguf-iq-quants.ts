// Decodes GGUF's codebook types of 1 to 3 bits ("IQ"). A block of 256 weights has an f16 scale, and small scales per
// 16 or 32 weights. Signs are stored separately: one bit per weight, set if negative.
import { type BlockDecoder, halfAt, shortAt, wordAt } from "./gguf-bytes.ts";
import { codebook } from "./gguf-codebooks.ts";

/** Layout per 32 weights: 4 codebook indices of 8 bits; then a word with 4 x 7 sign bits and a 4-bit scale. */
const IQ2_XXS: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ2_XXS");
  const scale = halfAt(half, source, at);
  for (let from = at + 2; from < at + 66; from += 8) {
    const word = wordAt(source, from + 4);
    const own = scale * (0.5 + (word >>> 28)) * 0.25;
    for (let i = 0; i < 4; i++, to += 8) {
      const signs = evenSigns((word >>> (7 * i)) & 127);
      putRow(target, to, rows, 8 * source[from + i]!, 8, own, signs);
    }
  }
};

/** Layout: 32 x 16 bits with a 9-bit codebook index and 7 sign bits, then 4-bit scales per 16 weights. */
const IQ2_XS: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ2_XS");
  const scale = halfAt(half, source, at);
  for (let i = 0; i < 32; i++, to += 8) {
    const own = scale * (0.5 + nibble(source, at + 66, i >> 1)) * 0.25;
    const row = shortAt(source, at + 2 + 2 * i);
    putRow(target, to, rows, 8 * (row & 511), 8, own, evenSigns(row >> 9));
  }
};

/** Layout: 32 bytes of index bits 0-7, 32 of signs, 8 of index bits 8-9, 4-bit scales per 16 weights. */
const IQ2_S: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ2_S");
  const scale = halfAt(half, source, at);
  for (let i = 0; i < 32; i++, to += 8) {
    const own = scale * (0.5 + nibble(source, at + 74, i >> 1)) * 0.25;
    const above = (source[at + 66 + (i >> 2)]! >> (2 * (i & 3))) & 3;
    const row = source[at + 2 + i]! | (above << 8);
    putRow(target, to, rows, 8 * row, 8, own, source[at + 34 + i]!);
  }
};

/** Layout: 64 codebook indices of 8 bits; then a word per 32 weights, with 4 x 7 sign bits and a 4-bit scale. */
const IQ3_XXS: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ3_XXS");
  const scale = halfAt(half, source, at);
  for (let i = 0; i < 32; i++, to += 8) {
    const word = wordAt(source, at + 66 + 4 * (i >> 2));
    const own = scale * (0.5 + (word >>> 28)) * 0.5;
    const signs = evenSigns((word >>> (7 * (i & 3))) & 127);
    const from = at + 2 + 2 * i;
    putRow(target, to, rows, 4 * source[from]!, 4, own, signs);
    putRow(target, to + 4, rows, 4 * source[from + 1]!, 4, own, signs >> 4);
  }
};

/** Layout: 64 bytes of index bits 0-7, 8 of index bit 8, 32 of signs, 4-bit scales per 32 weights. */
const IQ3_S: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ3_S");
  const scale = halfAt(half, source, at);
  for (let i = 0; i < 64; i++, to += 4) {
    const own = scale * (1 + 2 * nibble(source, at + 106, i >> 3));
    const ninth = (source[at + 66 + (i >> 3)]! >> (i & 7)) & 1;
    const row = source[at + 2 + i]! | (ninth << 8);
    const signs = source[at + 74 + (i >> 1)]! >> (4 * (i & 1));
    putRow(target, to, rows, 4 * row, 4, own, signs);
  }
};

/** Number that is added to, or subtracted from, each weight of -1, 0 or 1. */
const DELTA = 0.125;

/** Layout: 32 bytes of index bits 0-7; per 32 weights, bits 8-10 of 4 indices, a 3-bit scale, DELTA's sign. */
const IQ1_S: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ1_S");
  const scale = halfAt(half, source, at);
  for (let i = 0; i < 32; i++, to += 8) {
    const above = shortAt(source, at + 34 + 2 * (i >> 2));
    const own = scale * (2 * ((above >> 12) & 7) + 1);
    const row = source[at + 2 + i]! | (((above >> (3 * (i & 3))) & 7) << 8);
    putMoved(target, to, rows, 8 * row, own, above & 0x8000 ? -DELTA : DELTA);
  }
};

/** Layout: 32 bytes of index bits 0-7; per index, bits 8-10 and DELTA's sign; 3-bit scales per 16 weights. */
const IQ1_M: BlockDecoder = (source, at, target, to, half) => {
  const rows = codebook("IQ1_S");
  const scales = at + 48;
  // Collects the f16 scale from the top 4 bits of four words, whose other bits hold the 3-bit scales.
  let bits = 0;
  for (let i = 0; i < 4; i++) bits |= (shortAt(source, scales + 2 * i) >> 12) << (4 * i);
  const scale = half[bits]!;
  for (let i = 0; i < 32; i++, to += 8) {
    const group = i >> 1;
    const small = (shortAt(source, scales + 2 * (group >> 2)) >> (3 * (group & 3))) & 7;
    const above = nibble(source, at + 32, i);
    const row = source[at + i]! | ((above & 7) << 8);
    putMoved(target, to, rows, 8 * row, scale * (2 * small + 1), above & 8 ? -DELTA : DELTA);
  }
};

/** Returns eight signs, given seven: the number of set signs is even, so the eighth follows from the others. */
function evenSigns(seven: number): number {
  let parity = seven ^ (seven >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | ((parity & 1) << 7);
}

function nibble(source: Uint8Array, at: number, index: number): number {
  return (source[at + (index >> 1)]! >> (4 * (index & 1))) & 15;
}

function putRow(
  target: Float32Array,
  to: number,
  rows: Int8Array,
  row: number,
  width: number,
  scale: number,
  signs: number,
): void {
  for (let i = 0; i < width; i++) {
    const value = scale * rows[row + i]!;
    target[to + i] = (signs >> i) & 1 ? -value : value;
  }
}

function putMoved(
  target: Float32Array,
  to: number,
  rows: Int8Array,
  row: number,
  scale: number,
  delta: number,
): void {
  for (let i = 0; i < 8; i++) target[to + i] = scale * (rows[row + i]! + delta);
}

export const iqDecoders = { IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S };
