// Experts as DeepSeek chooses them, and many after it: scores by softmax or sigmoid, experts in groups of which only
// the best are considered, and experts that all tokens go through.
import type { Linear } from "../device/device.ts";
import { LoadError } from "../files/load-error.ts";
import type { MlxArray } from "../mlx/array.ts";
import {
  add,
  argpartition,
  astype,
  divide,
  expandDims,
  multiply,
  putAlongAxis,
  reshape,
  sigmoid,
  slice,
  softmax,
  sum,
  takeAlongAxis,
} from "../mlx/ops.ts";
import { runsOf, stacked } from "./arrangement.ts";
import { type ExpertSizes, expertMlps, gatedMlp, topExperts, weighted } from "./layers.ts";
import type { Weights } from "./weights.ts";

export type Routing = {
  /** Experts of a token. */
  each: number;
  scores: "softmax" | "sigmoid";
  /** The name of a tensor (experts) that is added to scores when experts are chosen, but not to their shares. */
  correction?: string | undefined;
  /** Only experts of the `kept` best groups are chosen. A group is as good as its `best` best experts together. */
  groups?: { count: number; kept: number; best: number } | undefined;
  /** Whether the shares of a token's experts are made to add up to 1, before they are scaled. */
  isNormalized: boolean;
  scale: number;
};

/** x (T, D) -> the experts of each token (T, K), and the share that each has (T, K), float32. */
export type Router = (x: MlxArray) => { chosen: MlxArray; shares: MlxArray };

/** `name`.weight is the matrix of the scores. */
export function router(
  weights: Weights,
  name: string,
  { experts, dims }: Pick<ExpertSizes, "experts" | "dims">,
  { each, scores: kind, correction, groups, isNormalized, scale }: Routing,
): Router {
  if (groups && experts % groups.count !== 0) {
    throw new LoadError(`config.json: ${experts} experts do not fit ${groups.count} groups`);
  }
  const linear = weights.linear(name, dims, experts);
  const bias = correction && weights.tensor(correction, [experts], "float32");
  return (x) => {
    const raw = astype(linear(x), "float32");
    const scores = kind === "softmax" ? softmax(raw) : sigmoid(raw); // (T, experts)
    const corrected = bias ? add(scores, bias) : scores;
    const considered =
      groups && groups.kept < groups.count ? bestGroups(corrected, groups) : corrected;
    const chosen = topExperts(considered, each);
    const shares = takeAlongAxis(scores, chosen);
    const whole = isNormalized && each > 1 ? divide(shares, sum(shares, -1, true)) : shares;
    return { chosen, shares: scale === 1 ? whole : multiply(whole, scale) };
  };
}

/** scores (T, experts), 0 in all groups but the best. */
function bestGroups(
  scores: MlxArray,
  { count, kept, best }: NonNullable<Routing["groups"]>,
): MlxArray {
  const [tokens, experts] = scores.shape as [number, number];
  const grouped = reshape(scores, [tokens, count, experts / count]);
  const worth = sum(takeAlongAxis(grouped, topExperts(grouped, best)), -1); // (T, groups)
  const dropped = slice(argpartition(worth, count - kept - 1), -1, 0, count - kept);
  return reshape(putAlongAxis(grouped, expandDims(dropped, -1), 0, -2), [tokens, experts]);
}

/** `name`.gate chooses experts of `name`.switch_mlp; `shared` is the width of `name`.shared_experts, 0 for none. */
export function routedMlp(
  weights: Weights,
  name: string,
  sizes: ExpertSizes & { shared: number },
  routing: Routing,
): Linear {
  const { experts, dims, shared } = sizes;
  stackExperts(weights, name, experts);
  const route = router(weights, `${name}.gate`, sizes, routing);
  const mlps = expertMlps(weights, `${name}.switch_mlp`, sizes);
  const always = shared > 0 && gatedMlp(weights, `${name}.shared_experts`, dims, shared);
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x);
    const made = astype(weighted(mlps(x, chosen), shares), x.dtype);
    const sparse = residual ? add(residual, made) : made;
    return always ? always(x, { residual: sparse }) : sparse;
  };
}

/** The names that files have for the parts of an MLP. */
export type MlpNames = Partial<Record<"gate_proj" | "up_proj" | "down_proj", string>>;

const mlpNames: MlpNames = { gate_proj: "gate_proj", up_proj: "up_proj", down_proj: "down_proj" };

/** The authors' files have a matrix an expert, in `name`.experts; MLX's have one for all, in `name`.switch_mlp. */
export function stackExperts(
  weights: Weights,
  name: string,
  experts: number,
  names: MlpNames = mlpNames,
): void {
  for (const [part, stored] of Object.entries(names)) {
    for (const kind of ["weight", "scales", "biases"]) {
      const each = (i: number) => `${name}.experts.${i}.${stored}.${kind}`;
      if (!weights.has(each(0))) continue;
      const all = Array.from({ length: experts }, (_, i) => each(i));
      weights.arrange(all, (tensors) => stacked(`${name}.switch_mlp.${part}.${kind}`, tensors));
    }
  }
}

/** Some authors' files have all gates and ups in one tensor, (experts, 2 hidden, dims). */
export function splitExperts(weights: Weights, source: string, name: string): void {
  for (const [half, part] of ["gate_proj", "up_proj"].entries()) {
    weights.arrange([source], ([stored]) => {
      const [experts, both, dims] = stored!.shape as [number, number, number];
      const runs = Array.from({ length: experts }, (_, i) => {
        return { first: i * both + (half * both) / 2, count: both / 2 };
      });
      return runsOf(`${name}.${part}.weight`, stored!, {
        rows: experts * both,
        runs,
        shape: [experts, both / 2, dims],
      });
    });
  }
}
