// Dequantizes GGUF blocks to f32. Scales are f16 and integers have at most 8 bits, so sums and products are exact in a
// double and only the store to f32 rounds: results are bit-identical to ggml's.
import { blockOf, type GgufType } from "./gguf.ts";
import { type BlockDecoder, halfAt, halves, signed, wordAt } from "./gguf-bytes.ts";
import { iqDecoders } from "./gguf-iq-quants.ts";
import { smallDecoders } from "./gguf-small-quants.ts";
import { LoadError } from "./load-error.ts";

/** Decoders of whole tensors, because a call per block is too slow for blocks of only 1 or 32 weights. */
const whole = {
  ...{ F32: decodeF32, F16: decodeF16, BF16: decodeBF16, Q8_0: decodeQ8_0 },
  ...{ Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1 },
};

/** Decodes whole blocks: those of a tensor, or of a part of a tensor. */
export function dequantize(type: GgufType, source: Uint8Array, target: Float32Array): void {
  const [decodeAll, decode] = [whole[type as keyof typeof whole], decoders[type]];
  if (!decodeAll && !decode) {
    const known = Object.keys({ ...whole, ...decoders }).join(", ");
    throw new LoadError(`weights of type ${type} are not supported; ${known} are`);
  }
  blocksIn(type, source, target.length);
  const half = halves();
  decodeAll?.(source, target, half);
  if (!decode) return;
  const { bytes, items } = blockOf(type);
  for (let at = 0, to = 0; to < target.length; at += bytes, to += items)
    decode(source, at, target, to, half);
}

/** Returns the number of blocks in `source`; throws unless they hold exactly `items` weights. */
export function blocksIn(type: GgufType, source: Uint8Array, items: number): number {
  const block = blockOf(type);
  const blocks = source.length / block.bytes;
  if (Number.isInteger(blocks) && blocks * block.items === items) return blocks;
  throw new RangeError(`${source.length} bytes of ${type} do not hold ${items} weights`);
}

function decodeF32(source: Uint8Array, target: Float32Array): void {
  new Uint8Array(target.buffer, target.byteOffset, target.byteLength).set(source);
}

function decodeF16(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i] = halfAt(half, source, 2 * i);
}

/** Decodes bf16, the upper half of an f32. */
function decodeBF16(source: Uint8Array, target: Float32Array): void {
  const bits = new Uint32Array(target.buffer, target.byteOffset, target.length);
  for (let i = 0; i < bits.length; i++) {
    bits[i] = (source[2 * i]! << 16) | (source[2 * i + 1]! << 24);
  }
}

// Blocks of 32 weights. If weights have 4 or 5 bits, byte i holds the low 4 bits of weights i and i + 16.

/** Decodes blocks of an f16 scale and 16 bytes of quants. */
function decodeQ4_0(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let at = 0, to = 0; to < target.length; at += 18, to += 32) {
    const scale = halfAt(half, source, at);
    for (let i = 0; i < 16; i++) {
      const pair = source[at + 2 + i]!;
      target[to + i] = scale * ((pair & 15) - 8);
      target[to + i + 16] = scale * ((pair >> 4) - 8);
    }
  }
}

/** Decodes blocks of an f16 scale, an f16 minimum and 16 bytes of quants. */
function decodeQ4_1(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let at = 0, to = 0; to < target.length; at += 20, to += 32) {
    const scale = halfAt(half, source, at);
    const min = halfAt(half, source, at + 2);
    for (let i = 0; i < 16; i++) {
      const pair = source[at + 4 + i]!;
      target[to + i] = scale * (pair & 15) + min;
      target[to + i + 16] = scale * (pair >> 4) + min;
    }
  }
}

/** Decodes blocks of an f16 scale, the 32 fifth bits and 16 bytes of quants. */
function decodeQ5_0(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let at = 0, to = 0; to < target.length; at += 22, to += 32) {
    const scale = halfAt(half, source, at);
    const fifth = wordAt(source, at + 2);
    for (let i = 0; i < 16; i++) {
      const pair = source[at + 6 + i]!;
      target[to + i] = scale * (((pair & 15) | (((fifth >>> i) & 1) << 4)) - 16);
      target[to + i + 16] = scale * (((pair >> 4) | (((fifth >>> (i + 16)) & 1) << 4)) - 16);
    }
  }
}

/** Decodes blocks of an f16 scale, an f16 minimum, the 32 fifth bits and 16 bytes of quants. */
function decodeQ5_1(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let at = 0, to = 0; to < target.length; at += 24, to += 32) {
    const scale = halfAt(half, source, at);
    const min = halfAt(half, source, at + 2);
    const fifth = wordAt(source, at + 4);
    for (let i = 0; i < 16; i++) {
      const pair = source[at + 8 + i]!;
      target[to + i] = scale * ((pair & 15) | (((fifth >>> i) & 1) << 4)) + min;
      target[to + i + 16] = scale * ((pair >> 4) | (((fifth >>> (i + 16)) & 1) << 4)) + min;
    }
  }
}

/** Decodes blocks of an f16 scale and 32 signed bytes. */
function decodeQ8_0(source: Uint8Array, target: Float32Array, half: Float32Array): void {
  for (let at = 0, to = 0; to < target.length; at += 34, to += 32) {
    const scale = halfAt(half, source, at);
    for (let i = 0; i < 32; i++) target[to + i] = scale * signed(source[at + 2 + i]!);
  }
}

// Blocks of 256 weights ("K"): each group of 16 or 32 weights has a small integer scale, which is multiplied by the
// scale of the block. A byte packs the bits of 2, 4 or 8 weights, each of another group; a shift selects the group.

/** Layout: 16 bytes of 4-bit scales and minima, 64 of quants, an f16 scale, an f16 minimum. */
const Q2_K: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at + 80);
  const min = halfAt(half, source, at + 82);
  for (let group = 0; group < 16; group++, to += 16) {
    const own = source[at + group]!;
    const groupScale = scale * (own & 15);
    const groupMin = min * (own >> 4);
    const from = at + 16 + 32 * (group >> 3) + 16 * (group & 1);
    const shift = group & 6;
    for (let i = 0; i < 16; i++) {
      target[to + i] = groupScale * ((source[from + i]! >> shift) & 3) - groupMin;
    }
  }
};

/** Layout: 32 bytes of third bits, 64 of low 2 bits, 12 of 6-bit scales, an f16 scale. */
const Q3_K: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at + 108);
  const scales = at + 96;
  for (let group = 0; group < 16; group++, to += 16) {
    const low = (source[scales + (group & 7)]! >> (group < 8 ? 0 : 4)) & 15;
    const high = (source[scales + 8 + (group & 3)]! >> (2 * (group >> 2))) & 3;
    const groupScale = scale * ((low | (high << 4)) - 32);
    const third = at + 16 * (group & 1);
    const from = at + 32 + 32 * (group >> 3) + 16 * (group & 1);
    const shift = group & 6;
    for (let i = 0; i < 16; i++) {
      const bit = (source[third + i]! >> (group >> 1)) & 1;
      target[to + i] = groupScale * (((source[from + i]! >> shift) & 3) + 4 * bit - 4);
    }
  }
};

/** Layout: an f16 scale, an f16 minimum, 12 bytes of 6-bit scales and minima, 128 of quants. */
const Q4_K: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at);
  const min = halfAt(half, source, at + 2);
  for (let group = 0; group < 8; group++, to += 32) {
    const groupScale = scale * sixBitScale(source, at + 4, group);
    const groupMin = min * sixBitMin(source, at + 4, group);
    const from = at + 16 + 32 * (group >> 1);
    const shift = 4 * (group & 1);
    for (let i = 0; i < 32; i++) {
      target[to + i] = groupScale * ((source[from + i]! >> shift) & 15) - groupMin;
    }
  }
};

/** Layout: as Q4_K, with 32 bytes of fifth bits before the quants. */
const Q5_K: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at);
  const min = halfAt(half, source, at + 2);
  for (let group = 0; group < 8; group++, to += 32) {
    const groupScale = scale * sixBitScale(source, at + 4, group);
    const groupMin = min * sixBitMin(source, at + 4, group);
    const from = at + 48 + 32 * (group >> 1);
    const shift = 4 * (group & 1);
    for (let i = 0; i < 32; i++) {
      const fifth = (source[at + 16 + i]! >> group) & 1;
      const quant = ((source[from + i]! >> shift) & 15) | (fifth << 4);
      target[to + i] = groupScale * quant - groupMin;
    }
  }
};

/** Layout: 128 bytes of low 4 bits, 64 of high 2 bits, 16 signed scales, an f16 scale. */
const Q6_K: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at + 208);
  for (let group = 0; group < 16; group++, to += 16) {
    const groupScale = scale * signed(source[at + 192 + group]!);
    const low = at + 64 * (group >> 3) + 16 * (group & 3);
    const lowShift = group & 4;
    const high = at + 128 + 32 * (group >> 3) + 16 * (group & 1);
    const highShift = group & 6;
    for (let i = 0; i < 16; i++) {
      const quant =
        ((source[low + i]! >> lowShift) & 15) | (((source[high + i]! >> highShift) & 3) << 4);
      target[to + i] = groupScale * (quant - 32);
    }
  }
};

/** Reads a 6-bit scale: bytes 0-3 hold scales 0-3, 4-7 minima 0-3; their top bits and bytes 8-11, those of 4-7. */
function sixBitScale(source: Uint8Array, at: number, group: number): number {
  if (group < 4) return source[at + group]! & 63;
  return (source[at + group + 4]! & 15) | ((source[at + group - 4]! >> 6) << 4);
}

function sixBitMin(source: Uint8Array, at: number, group: number): number {
  if (group < 4) return source[at + group + 4]! & 63;
  return (source[at + group + 4]! >> 4) | ((source[at + group]! >> 6) << 4);
}

const decoders: Partial<Record<GgufType, BlockDecoder>> = {
  ...{ Q2_K, Q3_K, Q4_K, Q5_K, Q6_K },
  ...iqDecoders,
  ...smallDecoders,
};
