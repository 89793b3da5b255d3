// RoPE and its scalings for longer contexts.

import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { rope as rotate } from "../../mlx/fast.ts";
import {
  concatenate,
  contiguous,
  expandDims,
  multiply,
  negative,
  split,
  squeeze,
} from "../../mlx/ops.ts";
import type { BaseConfig, RopeScaling } from "../checkpoint/config.ts";
import type { Weights } from "../weights/weights.ts";

/** RoPE over a head's first `dims` features: rotates feature i with i + dims / 2, and multiplies by `magnitude`. */
export type Rope = {
  dims: number;
  /** (dims / 2) float32: number of positions that rotate by one radian. */
  wavelengths: MlxArray;
  magnitude: number;
  /** Wavelengths and magnitude for all tokens of sequences longer than `beyond` tokens, as in longrope. */
  long?: { beyond: number; wavelengths: MlxArray; magnitude: number } | undefined;
};

export type RopeOptions = {
  dims: number;
  base: number;
  scaling?: RopeScaling | null | undefined;
  maxPositions?: number | null | undefined;
};

type RopeConfig = Pick<
  BaseConfig,
  | "rope_theta"
  | "rope_scaling"
  | "sliding_rope"
  | "partial_rotary_factor"
  | "max_position_embeddings"
>;

export function ropeOptions(
  { rope_theta: theta, rope_scaling: scaling, max_position_embeddings }: RopeConfig,
  dims: number,
): RopeOptions {
  const base = scaling?.alpha ? theta * scaling.alpha ** (dims / (dims - 2)) : theta;
  return { dims, base, scaling, maxPositions: max_position_embeddings };
}

/**
 * Returns a function that makes a layer's RoPE, or returns the one that it made earlier for this head size. Layers
 * with a window get another RoPE if `localBase` or the configuration has one. `rotary`: rotary features, if known.
 */
export function layerRopes(
  far: RopeConfig,
  weights: Weights,
  { localBase, rotary }: { localBase?: number | undefined; rotary?: number | null | undefined },
): (window: number | undefined, headDim: number) => Rope {
  const { sliding_rope, rope_theta } = far;
  const near: RopeConfig = {
    ...far,
    rope_scaling: undefined,
    ...sliding_rope,
    rope_theta: sliding_rope?.rope_theta ?? localBase ?? rope_theta,
  };
  const hasNear = localBase != null || sliding_rope != null;
  const made = new Map<string, Rope>();
  return (window, headDim) => {
    const isNear = hasNear && window !== undefined;
    const key = `${isNear} ${headDim}`;
    const own = isNear ? near : far;
    const dims = rotary ?? rotaryDims(own, headDim);
    const rope = made.get(key) ?? makeRope(weights, ropeOptions(own, dims));
    made.set(key, rope);
    return rope;
  };
}

/** Returns how many features of a head are rotary. */
function rotaryDims({ rope_scaling, partial_rotary_factor }: RopeConfig, headDim: number): number {
  // Proportional RoPE counts all features as rotary: `proportional` makes wavelengths that leave some unrotated.
  if (rope_scaling?.rope_type === "proportional") return headDim;
  const share = partial_rotary_factor ?? 1;
  const rotary = 2 * Math.floor((headDim * share) / 2);
  if (rotary > 0) return rotary;
  throw new LoadError(`config.json: partial_rotary_factor: ${share} of ${headDim} rotates nothing`);
}

/** Maximum rotary features, above any real head's: rejects a count before a list of that length is allocated. */
const MAX_ROTATED = 2 ** 16;

export function makeRope(weights: Weights, options: RopeOptions): Rope {
  const { dims, scaling } = options;
  if (!(dims <= MAX_ROTATED)) {
    throw new LoadError(`config.json: RoPE would rotate ${dims} features of a head`);
  }
  const kind = kindOf(scaling);
  const make = (waves: Float32Array, magnitude = 1): Rope => {
    return { dims, wavelengths: weights.arrays.constant(waves), magnitude };
  };
  const plain = Float32Array.from(wavelengths(options));
  // All of these are plain RoPE here: the two dimensions of mrope's positions are equal in text, and a dynamic base
  // grows only beyond max_position_embeddings, which no sequence exceeds.
  if (["default", "mrope", "dynamic"].includes(kind)) return make(plain);
  if (kind === "linear") {
    const factor = factorOf(scaling!);
    return make(plain.map((wave) => wave * factor));
  }
  if (kind === "llama3") return make(llama3(options));
  if (["yarn", "deepseek_yarn", "telechat3-yarn"].includes(kind)) {
    return make(yarn(options), yarnMagnitude(scaling!));
  }
  if (isLongRope(kind)) {
    const { beyond, short, long } = longRope(scaling!, options.maxPositions);
    const scaled = ({ factors, magnitude }: LongRopeSet) =>
      make(scaledBy(factors, options), magnitude);
    const rope = scaled(short);
    return beyond === undefined ? rope : { ...rope, long: { ...scaled(long), beyond } };
  }
  if (kind === "proportional") return make(proportional(options));
  const known = "default, linear, llama3, yarn, longrope, proportional, dynamic and mrope";
  throw new LoadError(`config.json: rope_scaling: there is no ${kind}; there are ${known}`);
}

function kindOf(scaling: RopeOptions["scaling"]): string {
  return scaling?.type ?? scaling?.rope_type ?? "default";
}

const isLongRope = (kind: string) => kind === "longrope" || kind === "su";

/** Returns the length beyond which a sequence is rotated by `Rope.long`; undefined without longrope. */
export function originalLength({
  rope_scaling: scaling,
  max_position_embeddings: maxPositions,
}: RopeConfig): number | undefined {
  return isLongRope(kindOf(scaling)) ? longRope(scaling!, maxPositions).beyond : undefined;
}

/** Throws if the RoPE depends on the sequence's length, for layers that do not know this length. */
export function ofAnyLength(rope: Rope): Rope {
  if (!rope.long) return rope;
  throw new LoadError(
    "config.json: rope_scaling: this attention takes no longrope with different short and long factors",
  );
}

/** Returns the inverse rotation. */
export function backwards(weights: Weights, rope: Rope): Rope {
  const wavelengths = weights.arrays.computed(() => negative(rope.wavelengths));
  return { ...ofAnyLength(rope), wavelengths };
}

/** Rotates the heads x (T, heads, D) by the positions (T) of their tokens. */
export function rotated(x: MlxArray, { dims, wavelengths, magnitude }: Rope, positions: MlxArray) {
  // Copies slices, because MLX's CUDA kernel writes past its output if x is a slice of wider rows.
  const rows = expandDims(contiguous(x), 2);
  const whole = squeeze(rotate(rows, dims, wavelengths, positions), 2);
  if (magnitude === 1) return whole;
  const [placed, rest] = split(whole, [dims]) as [MlxArray, MlxArray];
  return concatenate([multiply(placed, magnitude), rest], -1);
}

/** Returns base ^ (2i / dims) for each pair i, in float32 as in training. */
function wavelengths({ dims, base }: RopeOptions): number[] {
  return Array.from({ length: dims / 2 }, (_, i) => base ** Math.fround((2 * i) / dims));
}

/** Scales long wavelengths, keeps short ones, and blends those between. */
function llama3(options: RopeOptions): Float32Array {
  const scaling = options.scaling!;
  const factor = factorOf(scaling);
  const { low_freq_factor: low = 1, high_freq_factor: high = 4 } = scaling;
  const context = scaling.original_max_position_embeddings ?? options.maxPositions ?? 8192;
  return Float32Array.from(wavelengths(options), (freq) => {
    const wave = 2 * Math.PI * freq;
    if (wave > context / low) return freq * factor;
    if (wave <= context / high) return freq;
    const smooth = (context / wave - low) / (high - low);
    return freq / ((1 - smooth) / factor + smooth);
  });
}

/** Scales like llama3, but blends by a ramp over the features instead of over the wavelengths. */
function yarn(options: RopeOptions): Float32Array {
  const { dims, base, maxPositions } = options;
  const scaling = options.scaling!;
  const factor = factorOf(scaling);
  const context = scaling.original_max_position_embeddings ?? maxPositions ?? 4096;
  const { beta_fast: fast = 32, beta_slow: slow = 1, truncate = true } = scaling;
  const feature = (rotations: number) =>
    (dims * Math.log(context / (rotations * 2 * Math.PI))) / (2 * Math.log(base));
  const [begin, end] = [feature(fast), feature(slow)];
  const first = Math.max(truncate ? Math.floor(begin) : begin, 0);
  const last = Math.min(truncate ? Math.ceil(end) : end, dims - 1);
  return Float32Array.from(wavelengths(options), (freq, i) => {
    const stretched = Math.min(Math.max((i - first) / (last - first || 0.001), 0), 1);
    return (freq * factor) / (factor * (1 - stretched) + stretched);
  });
}

function yarnMagnitude(scaling: RopeScaling): number {
  const { attention_factor, mscale, mscale_all_dim: all } = scaling;
  if (attention_factor != null) return attention_factor;
  // The authors' code ignores mscale or mscale_all_dim if the other one is missing.
  return mscale && all ? yarnGain(scaling, mscale) / yarnGain(scaling, all) : yarnGain(scaling, 1);
}

function yarnGain(scaling: RopeScaling, weight: number): number {
  const factor = factorOf(scaling);
  return factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1;
}

/** Returns a factor on attention scores, for models in which YaRN scales all features, not only the rotary ones. */
export function yarnScale({ scaling }: RopeOptions): number {
  return scaling?.mscale_all_dim ? yarnGain(scaling, scaling.mscale_all_dim) ** 2 : 1;
}

type LongRopeSet = { factors: readonly number[] | undefined; magnitude: number };

/** Returns longrope's factors for short and long sequences. `beyond`: longest short sequence, if both differ. */
function longRope(scaling: RopeScaling, maxPositions: RopeOptions["maxPositions"]) {
  const longest = maxPositions ?? 131_072;
  const { original_max_position_embeddings: original = longest } = scaling;
  const { factor = longest / original, attention_factor } = scaling;
  const stretched = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original));
  const usual = attention_factor ?? stretched;
  const { long_factor, short_factor = long_factor } = scaling;
  const short: LongRopeSet = { factors: short_factor, magnitude: scaling.short_mscale ?? usual };
  const long: LongRopeSet = { factors: long_factor, magnitude: scaling.long_mscale ?? usual };
  const isSwitched = longest > original && JSON.stringify(short) !== JSON.stringify(long);
  return { short, long, beyond: isSwitched ? original : undefined };
}

function scaledBy(factors: readonly number[] | undefined, options: RopeOptions): Float32Array {
  const count = options.dims / 2;
  if (factors?.length === count) {
    return Float32Array.from(wavelengths(options), (wave, i) => wave * factors[i]!);
  }
  throw new LoadError(
    `config.json: rope_scaling: short_factor and long_factor: expected ${count} numbers each`,
  );
}

/** A wavelength so long that it rotates no position. Kernels compiled with fast math cannot take infinity. */
const ENDLESS = 1e30;

/** Rotates only the first pairs of features, with wavelengths counted over all pairs. */
function proportional(options: RopeOptions): Float32Array {
  const { partial_rotary_factor: part = 1, factor = 1 } = options.scaling!;
  const rotated = Math.floor(options.dims * part) / 2;
  return Float32Array.from(wavelengths(options), (wave, i) =>
    i < rotated ? wave * factor : ENDLESS,
  );
}

function factorOf(scaling: RopeScaling): number {
  if (scaling.factor === undefined) throw new LoadError("config.json: rope_scaling has no factor");
  return scaling.factor;
}
