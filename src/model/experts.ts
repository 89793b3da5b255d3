// Experts: a few of many small MLPs, which a token's scores choose, and some that all tokens go through.
import type { Gating, Linear } from "../device/device.ts";
import { LoadError } from "../files/load-error.ts";
import type { Routing as DeviceRouting, Routed } from "../kernels/routing.ts";
import type { MlxArray } from "../mlx/array.ts";
import { add, multiply, sigmoid } from "../mlx/ops.ts";
import { runsOf, stacked, transposed } from "./arrangement.ts";
import { type ExpertSizes, expertMlps, gatedMlp } from "./layers.ts";
import type { Weights } from "./weights.ts";

export type Routing = Omit<DeviceRouting, "experts" | "correction" | "shared"> & {
  /** The name of a tensor (experts) that is added to scores when experts are chosen, but not to their shares. */
  correction?: string | undefined;
};

/** x (T, D) -> the experts of each token, and the share that each has. */
export type Router = (x: MlxArray) => Routed;

/** `name` is the matrix of the scores. `shared`: how many more experts all tokens go through, and their gate. */
export function router(
  weights: Weights,
  name: string,
  { experts, dims }: Pick<ExpertSizes, "experts" | "dims">,
  { correction, ...how }: Routing,
  shared: { count: number; gate?: string | undefined } = { count: 0 },
): Router {
  const { each, groups } = how;
  const isLimited = groups !== undefined && groups.kept < groups.count;
  if (isLimited && (experts % groups.count !== 0 || groups.best * groups.count > experts)) {
    throw new LoadError(`config.json: ${experts} experts do not fit ${groups.count} groups`);
  }
  if (each > experts) {
    throw new LoadError(`config.json: a token cannot have ${each} of ${experts} experts`);
  }
  const { count, gate } = shared;
  const scores = gate
    ? weights.joined(`${name}_with_shared`, [name, gate], dims, [experts, 1])
    : weights.linear(name, dims, experts);
  const routing: DeviceRouting = {
    ...how,
    experts,
    correction: correction ? weights.tensor(correction, [experts], "float32") : undefined,
    shared: { count, isGated: gate !== undefined },
  };
  return (x) => weights.device.route(x, scores, routing);
}

export type SharedExperts = {
  /** Of one MLP, and its width; 0 for none. */
  name: string;
  width: number;
  /** The name of a row (1, D): how far they are open. */
  gate?: string | undefined;
  /** As that of the experts unless it says. */
  gating?: Gating | undefined;
};

/** `name`.gate chooses experts of `name`.switch_mlp. */
export function routedMlp(
  weights: Weights,
  name: string,
  sizes: ExpertSizes,
  routing: Routing,
  shared: SharedExperts = { name: "", width: 0 },
  gating: Gating = "swiglu",
): Linear {
  stackExperts(weights, name, sizes.experts);
  const isAlike = (shared.gating ?? gating) === gating;
  const count = isAlike ? joinShared(weights, name, sizes, shared) : 0;
  const isApart = count === 0 && shared.width > 0;
  const gate = count > 0 ? shared.gate : undefined;
  const route = router(weights, `${name}.gate`, sizes, routing, { count, gate });
  const all = { ...sizes, experts: sizes.experts + count };
  const source = `${name}.${count > 0 ? "all_mlps" : "switch_mlp"}`;
  const mlps = expertMlps(weights, source, all, gating);
  const always = isApart ? sharedMlp(weights, sizes.dims, { gating, ...shared }) : undefined;
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x);
    const made = weights.device.combine(mlps(x, chosen), shares, residual);
    return always ? add(made, always(x)) : made;
  };
}

/**
 * A shared MLP is as many more experts as it is times as wide, if the file keeps it in their format: then one product
 * has them all, in `name`.all_mlps. How many they are; 0 where it stays apart.
 */
function joinShared(
  weights: Weights,
  name: string,
  { hidden }: ExpertSizes,
  shared: SharedExperts,
): number {
  const count = shared.width / hidden;
  const parts = ["gate_proj", "up_proj", "down_proj"].map((part) => ({
    joined: `${name}.all_mlps.${part}`,
    experts: `${name}.switch_mlp.${part}`,
    more: `${shared.name}.${part}`,
    sideBySide: part === "down_proj",
  }));
  const isJoined =
    count > 0 &&
    Number.isInteger(count) &&
    parts.every(({ experts, more, sideBySide }) =>
      weights.isLike(experts, more, sideBySide ? count : 1),
    );
  if (!isJoined) return 0;
  for (const { joined, experts, more, sideBySide } of parts) {
    weights.addExperts(joined, experts, { more, count, sideBySide });
  }
  return count;
}

function sharedMlp(
  weights: Weights,
  dims: number,
  { name, width, gate, gating }: SharedExperts,
): Linear {
  const mlp = gatedMlp(weights, name, dims, width, gating);
  if (!gate) return mlp;
  const opening = weights.linear(gate, dims, 1);
  return (x) => multiply(mlp(x), sigmoid(opening(x)));
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
    for (const kind of ["weight", "scales", "biases", "bias"]) {
      const each = (i: number) => `${name}.experts.${i}.${stored}.${kind}`;
      if (!weights.has(each(0))) continue;
      const all = Array.from({ length: experts }, (_, i) => each(i));
      weights.arrange(all, (tensors) => stacked(`${name}.switch_mlp.${part}.${kind}`, tensors));
    }
  }
}

/** Some of MLX's files call all experts `name`.experts. */
export function nameExperts(weights: Weights, name: string): void {
  for (const part of Object.keys(mlpNames)) {
    weights.rename({ [`${name}.experts.${part}.`]: `${name}.switch_mlp.${part}.` });
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

/** Others have them transposed, (experts, dims, 2 hidden), and what goes down too. */
export function transposeExperts(weights: Weights, source: string, name: string): void {
  const pick = (stored: string, part: string, index: number, parts: number) => {
    if (!weights.has(`${source}.${stored}`)) return;
    weights.arrange([`${source}.${stored}`], ([tensor]) => {
      const columns = tensor!.shape[2]! / parts;
      const picked = { first: index * columns, count: columns };
      return transposed(`${name}.${part}.weight`, tensor!, picked);
    });
  };
  pick("gate_up_proj", "gate_proj", 0, 2);
  pick("gate_up_proj", "up_proj", 1, 2);
  pick("down_proj", "down_proj", 0, 1);
}
