// MoE routing and the weighted sum of expert outputs, with MLX's operations.
import type { ExpertGroups, Routed, Routing } from "../kernels/token/routing.ts";
import type { MlxArray } from "../mlx/array.ts";
import {
  add,
  argmax,
  argpartition,
  astype,
  concatenate,
  divide,
  expandDims,
  lessEqual,
  logAddExp,
  max,
  maximum,
  multiply,
  negative,
  power,
  putAlongAxis,
  reshape,
  sigmoid,
  slice,
  softmax,
  subtract,
  sum,
  takeAlongAxis,
  tanh,
  where,
  zeros,
} from "../mlx/ops.ts";

/** Chooses experts. `raw`: the router's logits (T, experts), and one more column if shared experts have a gate. */
export function route(raw: MlxArray, routing: Routing): Routed {
  const { experts, each, correction, groups, isNormalized, scale, shared, softcap } = routing;
  const tokens = raw.shape[0]!;
  const scored = shared.isGated ? slice(raw, 1, 0, experts) : raw;
  const exact = astype(scored, "float32");
  const logits = softcap === undefined ? exact : multiply(tanh(divide(exact, softcap)), softcap);
  if (routing.scores === "sparsemixer") return sparseMix(logits, routing);
  const scores = scoresOf(routing.scores, logits); // (T, experts)
  const corrected = correction ? add(scores, correction) : scores;
  const considered =
    groups && groups.kept < groups.count ? bestGroups(corrected, groups) : corrected;
  const chosen = best(considered, each);
  const own = takeAlongAxis(scores, chosen);
  const whole = isNormalized && each > 1 ? divide(own, sum(own, -1, true)) : own;
  const shares = scale === 1 ? whole : multiply(whole, scale);
  if (shared.count === 0) return { chosen, shares };
  const extra = Array.from({ length: shared.count }, (_, i) =>
    add(zeros([tokens, 1], chosen.dtype), experts + i),
  );
  const open = shared.isGated
    ? sigmoid(astype(slice(raw, 1, experts, experts + 1), "float32"))
    : add(zeros([tokens, 1]), 1);
  return {
    chosen: concatenate([chosen, ...extra], -1),
    shares: concatenate([shares, ...extra.map(() => open)], -1),
  };
}

function scoresOf(kind: Exclude<Routing["scores"], "sparsemixer">, logits: MlxArray): MlxArray {
  if (kind === "softmax") return softmax(logits);
  return kind === "sigmoid" ? sigmoid(logits) : power(logAddExp(logits, 0), 0.5);
}

/** SparseMixer: picks experts one by one. Their weights are softmaxes over the remaining logits near the highest. */
function sparseMix(logits: MlxArray, { each, nearness = 0 }: Routing): Routed {
  let left = logits;
  const found = Array.from({ length: each }, () => {
    const highest = max(left, -1, true);
    const chosen = expandDims(argmax(left), -1);
    const size = maximum(maximum(logits, negative(logits)), highest);
    const isNear = lessEqual(divide(subtract(highest, logits), size), nearness);
    const shares = takeAlongAxis(softmax(where(isNear, left, -Infinity)), chosen);
    left = putAlongAxis(left, chosen, -Infinity);
    return { chosen, shares };
  });
  return {
    chosen: concatenate(
      found.map(({ chosen }) => chosen),
      -1,
    ),
    shares: concatenate(
      found.map(({ shares }) => shares),
      -1,
    ),
  };
}

export function combine(
  made: MlxArray,
  shares: MlxArray,
  residual: MlxArray | undefined,
): MlxArray {
  const sums = astype(sum(multiply(made, expandDims(shares, -1)), -2), made.dtype);
  return residual ? add(residual, sums) : sums;
}

/** Returns the experts with the highest scores, unordered: scores (T, experts) -> (T, count). */
function best(scores: MlxArray, count: number): MlxArray {
  return slice(argpartition(scores, -count), -1, -count);
}

/** Returns scores (T, experts), lowered to 0 or -infinity in all groups but the `kept` best. */
function bestGroups(
  scores: MlxArray,
  { count, kept, best: most, leavesOut }: ExpertGroups,
): MlxArray {
  const [tokens, experts] = scores.shape as [number, number];
  const grouped = reshape(scores, [tokens, count, experts / count]);
  const lowest = leavesOut ? -Infinity : 0;
  const worth = sum(takeAlongAxis(grouped, best(grouped, most)), -1); // (T, groups)
  const dropped = slice(argpartition(worth, count - kept - 1), -1, 0, count - kept);
  return reshape(putAlongAxis(grouped, expandDims(dropped, -1), lowest, -2), [tokens, experts]);
}
