// How MLX evaluates a graph on a CPU, as far as it affects memory (mlx/backend/cpu). Operations without CPU code are
// composed of other operations.
import { operations } from "../../ffi/symbols.ts";
import type { Evaluation, HasGaps } from "../mlx/peak.ts";
import type { SketchNode } from "../mlx/sketch.ts";
import { scoreBytes } from "./gpu.ts";

/**
 * MLX's CPU stream runs launches in batches of ten. Every array, even a view, adds a launch that frees its inputs
 * (mlx/backend/cpu/encoder.h, eval.cpp).
 */
export const cpuEvaluation: Evaluation = {
  batches: 10,
  launches: 10,
  numbers: Number.POSITIVE_INFINITY,
  launchesOf: (node, isView, hasGaps) => (isView ? 1 : launchesOf(node, hasGaps)),
  temporaryBytes: (node, hasGaps) =>
    scoreBytes(node) +
    (between[node.symbol] ?? 0) * node.bytes +
    sum(copiedFactors(node, hasGaps).map(({ bytes }) => bytes)),
};

/** Launches of these operations beyond the one that every operation needs. */
const more: Readonly<Record<string, number>> = {
  // One launch copies the addend to the output first.
  mlx_addmm: 1,
  // Two launches compare with the two limits.
  mlx_clip: 2,
  // One launch removes the reduced axis, of size 1.
  mlx_sum_axes: 1,
  mlx_fast_layer_norm: 28,
  mlx_fast_rope_dynamic: 40,
};

/** Memory of temporary arrays in composed operations, in multiples of the output's size. */
const between: Readonly<Record<string, number>> = {
  mlx_fast_layer_norm: 3,
  mlx_fast_rope_dynamic: 2,
};

function launchesOf(node: SketchNode, hasGaps: HasGaps): number {
  const { symbol, parents } = node;
  const own = symbol === "mlx_concatenate_axis" ? parents.length : 1;
  return 1 + own + (more[symbol] ?? 0) + broadcasts(node) + copiedFactors(node, hasGaps).length;
}

/** Returns the number of inputs that are broadcast: each costs a launch that makes a view. */
function broadcasts({ symbol, shape, parents }: SketchNode): number {
  const inputs = symbol === "mlx_addmm" ? parents.slice(0, 1) : parents;
  if (symbol !== "mlx_addmm" && !operations.elementwise.has(symbol)) return 0;
  return inputs.filter((input) => input.shape.join() !== shape.join()).length;
}

/** Returns the operands of a matrix product that are copied first, to be contiguous. */
function copiedFactors({ symbol, parents }: SketchNode, hasGaps: HasGaps): readonly SketchNode[] {
  return symbol === "mlx_matmul" || symbol === "mlx_addmm" ? parents.filter(hasGaps) : [];
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, each) => all + each, 0);
}
