// Reference products, dequantization and routing: JavaScript numbers and plain loops.
import type { Routing } from "../kernels/token/routing.ts";
import type { Quantization } from "../mlx/ops.ts";

/** Multiplies x (rows, inputs) by matrix (outputs, inputs) -> (rows, outputs). */
export function product(x: readonly number[], matrix: readonly number[], inputs: number): number[] {
  const [rows, outputs] = [x.length / inputs, matrix.length / inputs];
  const made = new Array<number>(rows * outputs);
  for (let row = 0; row < rows; row++) {
    for (let output = 0; output < outputs; output++) {
      let sum = 0;
      for (let i = 0; i < inputs; i++) sum += x[row * inputs + i]! * matrix[output * inputs + i]!;
      made[row * outputs + output] = sum;
    }
  }
  return made;
}

export function rowsOf(x: readonly number[], width: number): number[][] {
  return Array.from({ length: x.length / width }, (_, i) => x.slice(i * width, (i + 1) * width));
}

export const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));

/** Computes SwiGLU: the first half of each row gates the second. */
export function gated(x: readonly number[], width: number): number[] {
  return rowsOf(x, width).flatMap((row) =>
    row.slice(0, width / 2).map((gate, i) => gate * sigmoid(gate) * row[width / 2 + i]!),
  );
}

const e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/** Decodes an FP8 number: a sign bit, four exponent bits and three mantissa bits. */
function e4m3(byte: number): number {
  const sign = byte & 0x80 ? -1 : 1;
  const [exponent, mantissa] = [(byte >> 3) & 15, byte & 7];
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7));
}

/** Returns field `index` of tightly packed fields of `bits` bits. */
function field(bytes: Uint8Array, index: number, bits: number): number {
  let value = 0;
  for (let bit = 0; bit < bits; bit++) {
    const at = index * bits + bit;
    value |= ((bytes[at >> 3]! >> (at & 7)) & 1) << bit;
  }
  return value;
}

/** Dequantizes a matrix in MLX's format. Scales are numbers for "affine", otherwise bytes. */
export function dequantized(
  packed: Uint8Array,
  scales: readonly number[],
  biases: readonly number[] | undefined,
  { mode = "affine", bits = 4, groupSize = 64 }: Quantization,
): number[] {
  const numberOf = (code: number) => {
    if (mode === "affine") return code;
    if (mode === "mxfp8") return e4m3(code);
    return (code & 8 ? -1 : 1) * e2m1[code & 7]!;
  };
  const scaleOf = (scale: number) => {
    if (mode === "affine") return scale;
    return mode === "nvfp4" ? e4m3(scale) : 2 ** (scale - 127);
  };
  return Array.from({ length: (packed.length * 8) / bits }, (_, i) => {
    const group = Math.floor(i / groupSize);
    return numberOf(field(packed, i, bits)) * scaleOf(scales[group]!) + (biases?.[group] ?? 0);
  });
}

/** Returns a token's routing weight of each chosen expert. `raw`: router logits, then the shared experts' gate. */
export function routed(
  raw: readonly number[],
  routing: Omit<Routing, "correction"> & { correction?: readonly number[] | undefined },
): Map<number, number> {
  const { experts, each, softcap, correction, groups, isNormalized, scale, shared } = routing;
  const logits = raw
    .slice(0, experts)
    .map((x) => (softcap === undefined ? x : softcap * Math.tanh(x / softcap)));
  const scores = scoresOf(routing.scores, logits);
  const ranked = scores.map((score, i) => score + (correction?.[i] ?? 0));
  if (groups && groups.kept < groups.count) {
    const size = experts / groups.count;
    const worth = rowsOf(ranked, size).map((group) =>
      highest(group, groups.best).reduce((sum, i) => sum + group[i]!, 0),
    );
    const kept = new Set(highest(worth, groups.kept));
    for (const i of ranked.keys()) {
      if (!kept.has(Math.floor(i / size))) ranked[i] = groups.leavesOut ? -Infinity : 0;
    }
  }
  const chosen = highest(ranked, each);
  const total =
    isNormalized && each > 1 ? chosen.reduce((sum, expert) => sum + scores[expert]!, 0) : 1;
  const shares = new Map(chosen.map((expert) => [expert, (scale * scores[expert]!) / total]));
  for (let i = 0; i < shared.count; i++) {
    shares.set(experts + i, shared.isGated ? sigmoid(raw[experts]!) : 1);
  }
  return shares;
}

function scoresOf(kind: Routing["scores"], logits: readonly number[]): number[] {
  if (kind === "sigmoid") return logits.map(sigmoid);
  if (kind === "sqrtsoftplus") return logits.map((x) => Math.sqrt(Math.log1p(Math.exp(x))));
  const most = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - most));
  const total = powers.reduce((sum, x) => sum + x, 0);
  return powers.map((x) => x / total);
}

/** Returns the indices of the `count` highest numbers. */
function highest(x: readonly number[], count: number): number[] {
  return [...x.keys()].sort((a, b) => x[b]! - x[a]!).slice(0, count);
}
