// Decodes GGUF's ternary types ("TQ"), and its 4-bit types that index a table of sixteen values.
import { type BlockDecoder, halfAt, shortAt } from "./gguf-bytes.ts";

const powers = [1, 3, 9, 27, 81];

const partsOfTQ1_0 = [
  { from: 0, bytes: 32, digits: 5 },
  { from: 32, bytes: 16, digits: 5 },
  { from: 48, bytes: 4, digits: 4 },
];

/**
 * Decodes the 256 weights of a block to 0, 1 or 2. The first 32 bytes hold 5 weights each, the next 16 also 5, the
 * last 4 hold 4. A byte divided by 256 is a ternary fraction: multiplied by 3, its integer part is the first digit.
 */
export function tritsTQ1_0(source: Uint8Array, at: number, target: Uint8Array): void {
  let to = 0;
  for (const { from, bytes, digits } of partsOfTQ1_0) {
    for (let place = 0; place < digits; place++, to += bytes) {
      for (let i = 0; i < bytes; i++) {
        target[to + i] = (((source[at + from + i]! * powers[place]!) & 255) * 3) >> 8;
      }
    }
  }
}

/** Decodes the 256 weights of a block to 0, 1 or 2: 64 bytes hold 4 weights each. */
export function tritsTQ2_0(source: Uint8Array, at: number, target: Uint8Array): void {
  for (let i = 0; i < 256; i++) {
    target[i] = (source[at + 32 * (i >> 7) + (i & 31)]! >> (2 * ((i >> 5) & 3))) & 3;
  }
}

const trits = new Uint8Array(256);

/** Layout: the weights, an f16 scale. */
const TQ1_0: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at + 52);
  tritsTQ1_0(source, at, trits);
  for (let i = 0; i < 256; i++) target[to + i] = scale * (trits[i]! - 1);
};

/** Layout: the weights, an f16 scale. */
const TQ2_0: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at + 64);
  tritsTQ2_0(source, at, trits);
  for (let i = 0; i < 256; i++) target[to + i] = scale * (trits[i]! - 1);
};

const uneven = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/** The values of a 4-bit float (e2m1), doubled to be integers. */
const e2m1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/** Decodes pairs of weights: byte i holds weights i and i + `bytes`. */
function putPairs(
  target: Float32Array,
  to: number,
  source: Uint8Array,
  from: number,
  bytes: number,
  values: readonly number[],
  scale: number,
): void {
  for (let i = 0; i < bytes; i++) {
    const pair = source[from + i]!;
    target[to + i] = scale * values[pair & 15]!;
    target[to + i + bytes] = scale * values[pair >> 4]!;
  }
}

/** Layout: an f16 scale, 16 bytes of quants. */
const IQ4_NL: BlockDecoder = (source, at, target, to, half) => {
  putPairs(target, to, source, at + 2, 16, uneven, halfAt(half, source, at));
};

/** Layout: an f16 scale, the upper 2 bits of 8 scales, their lower 4 bits, 128 bytes of quants. */
const IQ4_XS: BlockDecoder = (source, at, target, to, half) => {
  const scale = halfAt(half, source, at);
  const upper = shortAt(source, at + 2);
  for (let group = 0; group < 8; group++, to += 32) {
    const lower = (source[at + 4 + (group >> 1)]! >> (4 * (group & 1))) & 15;
    const own = scale * ((lower | (((upper >> (2 * group)) & 3) << 4)) - 32);
    putPairs(target, to, source, at + 8 + 16 * group, 16, uneven, own);
  }
};

/** Layout: the scale's exponent, 16 bytes of quants. */
const MXFP4: BlockDecoder = (source, at, target, to) => {
  putPairs(target, to, source, at + 1, 16, e2m1, 2 ** (source[at]! - 128));
};

/** Layout: four scales, which are unsigned 8-bit floats; then 8 bytes of quants for each. */
const NVFP4: BlockDecoder = (source, at, target, to) => {
  for (let group = 0; group < 4; group++, to += 16) {
    const scale = unsignedE4M3(source[at + group]!) / 2;
    putPairs(target, to, source, at + 4 + 8 * group, 8, e2m1, scale);
  }
};

/** Decodes an unsigned 8-bit float (e4m3); NaN becomes 0. */
function unsignedE4M3(byte: number): number {
  if (byte === 0x7f) return 0;
  const [exponent, fraction] = [(byte >> 3) & 15, byte & 7];
  return exponent === 0 ? fraction * 2 ** -9 : (1 + fraction / 8) * 2 ** (exponent - 7);
}

export const smallDecoders = { IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4 };
