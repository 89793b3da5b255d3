// Repacks GGUF blocks into MLX's layouts without decoding, for types that MLX can represent exactly. Quants are
// fields in a stream of little-endian words, lowest bits first.
import { blockOf, type GgufType } from "./gguf.ts";
import { halfAt, halves, wordAt } from "./gguf-bytes.ts";
import { blocksIn } from "./gguf-quants.ts";
import { tritsTQ1_0, tritsTQ2_0 } from "./gguf-small-quants.ts";

/** How MLX quantizes. affine: weight = scale * q + bias; mxfp4: weight = 4-bit float * power of two. */
export type MlxLayout = {
  readonly mode: "affine" | "mxfp4";
  readonly bits: 4 | 8;
  readonly groupSize: number;
};

/**
 * Quantized weights with a scale and bias per group. f32 keeps both exact; in f16, the bias of a Q8_0 block (-128 *
 * scale) overflows for scales above 511.
 */
export type Repacked = {
  readonly weight: Uint32Array;
  readonly scales: Float32Array | Float16Array | Uint8Array;
  /** Biases of the affine layout; undefined in other layouts. */
  readonly biases: Float32Array | Float16Array | undefined;
};

/** Repacks the block at offset `at` as block number `index`. */
type Repack = (
  source: Uint8Array,
  at: number,
  target: Repacked,
  index: number,
  half: Float32Array,
) => void;

const fours = { mode: "affine", bits: 4, groupSize: 32 } as const;
/** MLX has no groups of 256 weights, so a block becomes two groups. */
const ternary = { mode: "affine", bits: 4, groupSize: 128 } as const;

const types = {
  Q4_0: { ...fours, repack: repackQ4_0 },
  Q4_1: { ...fours, repack: repackQ4_1 },
  Q8_0: { mode: "affine", bits: 8, groupSize: 32, repack: repackQ8_0 },
  TQ1_0: { ...ternary, repack: repackTernary(tritsTQ1_0, 52) },
  TQ2_0: { ...ternary, repack: repackTernary(tritsTQ2_0, 64) },
  MXFP4: { mode: "mxfp4", bits: 4, groupSize: 32, repack: repackMXFP4 },
} satisfies Partial<Record<GgufType, MlxLayout & { repack: Repack }>>;

export type RepackedType = keyof typeof types;

export function isRepacked(type: string): type is RepackedType {
  return Object.hasOwn(types, type);
}

export function mlxLayoutOf(type: RepackedType): MlxLayout {
  const { mode, bits, groupSize } = types[type];
  return { mode, bits, groupSize };
}

/** Repacks whole blocks into `target`. */
export function repack(type: RepackedType, source: Uint8Array, target: Repacked): void {
  const { mode, bits, groupSize, repack } = types[type];
  const items = (target.weight.length * 32) / bits;
  const blocks = blocksIn(type, source, items);
  const groups = items / groupSize;
  const biases = mode === "affine" ? groups : undefined;
  if (target.scales.length !== groups || target.biases?.length !== biases) {
    throw new RangeError(`expected ${groups} scales${biases ? " and biases" : ""}`);
  }
  const { bytes } = blockOf(type);
  const half = halves();
  for (let i = 0; i < blocks; i++) repack(source, i * bytes, target, i, half);
}

/** Repacks a block without a minimum, in which quant 8 means zero. */
function repackQ4_0(...[source, at, target, index, half]: Parameters<Repack>): void {
  const scale = halfAt(half, source, at);
  target.scales[index] = scale;
  target.biases![index] = scale * -8;
  packNibbles(source, at + 2, target.weight, 4 * index);
}

function repackQ4_1(...[source, at, target, index, half]: Parameters<Repack>): void {
  target.scales[index] = halfAt(half, source, at);
  target.biases![index] = halfAt(half, source, at + 2);
  packNibbles(source, at + 4, target.weight, 4 * index);
}

/** Repacks 32 signed bytes to 8 words; flipping the sign bits adds 128. */
function repackQ8_0(...[source, at, target, index, half]: Parameters<Repack>): void {
  const scale = halfAt(half, source, at);
  target.scales[index] = scale;
  target.biases![index] = scale * -128;
  for (let word = 0; word < 8; word++) {
    target.weight[8 * index + word] = wordAt(source, at + 2 + 4 * word) ^ 0x80808080;
  }
}

function repackMXFP4(...[source, at, target, index]: Parameters<Repack>): void {
  target.scales[index] = source[at]!;
  packNibbles(source, at + 1, target.weight, 4 * index);
}

const trits = new Uint8Array(256);

/** Returns a function that repacks ternary weights (-1, 0, 1), which `read` decodes as 0, 1 and 2. */
function repackTernary(read: typeof tritsTQ1_0, scaleAt: number): Repack {
  return (source, at, { weight, scales, biases }, index, half) => {
    const scale = halfAt(half, source, at + scaleAt);
    scales.fill(scale, 2 * index, 2 * index + 2);
    biases!.fill(-scale, 2 * index, 2 * index + 2);
    read(source, at, trits);
    for (let i = 0, to = 32 * index; i < 256; to++) {
      let word = 0;
      for (let shift = 0; shift < 32; shift += 4, i++) word |= trits[i]! << shift;
      weight[to] = word;
    }
  };
}

/** Packs 16 bytes, each with weights i (low half) and i + 16 (high half), to 4 words with the weights in order. */
function packNibbles(source: Uint8Array, from: number, words: Uint32Array, to: number): void {
  for (let part = 0; part < 2; part++) {
    let low = 0;
    let high = 0;
    for (let i = 0; i < 8; i++) {
      const pair = source[from + part * 8 + i]!;
      low |= (pair & 15) << (4 * i);
      high |= (pair >> 4) << (4 * i);
    }
    words[to + part] = low;
    words[to + part + 2] = high;
  }
}
