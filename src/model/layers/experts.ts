// Builds mixtures of experts: a router chooses a few of many small MLPs per token; shared experts process all tokens.
import type { Gating, Hidden, Linear } from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
import type { Routing as DeviceRouting, Routed } from "../../kernels/token/routing.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, astype, less, multiply, sigmoid, squeeze, sum, where, zeros } from "../../mlx/ops.ts";
import type { Weights } from "../weights/weights.ts";
import type { Activation } from "./activations.ts";
import type { ExpertDesign, LatentExperts, Routing, SharedExperts } from "./expert-design.ts";
import { arrangeExperts } from "./expert-layouts.ts";
import {
  type ExpertMlps,
  type ExpertSizes,
  expertMlps,
  gatedMlp,
  plainMlp,
  rmsNorm,
  ungatedExpertMlps,
} from "./layers.ts";

/** x (T, D) -> the chosen experts of each token and their weights */
export type Router = (x: MlxArray) => Routed;

/** Builds a router. `name`: name of the score matrix. `shared`: number of shared experts, and their gate's name. */
export function router(
  weights: Weights,
  name: string,
  { experts, dims }: Pick<ExpertSizes, "experts" | "dims">,
  how: Routing,
  shared: { count: number; gate?: string | undefined } = { count: 0 },
): Router {
  const { each, groups, correction, scores = "softmax", isNormalized = true, scale = 1 } = how;
  const isLimited = groups !== undefined && groups.kept < groups.count;
  if (isLimited && (experts % groups.count !== 0 || groups.best * groups.count > experts)) {
    throw new LoadError(`config.json: ${experts} experts do not fit ${groups.count} groups`);
  }
  if (each > experts) {
    throw new LoadError(`config.json: ${each} experts per token, but there are ${experts}`);
  }
  const { count, gate } = shared;
  const product = gate
    ? weights.joined(`${name}_with_shared`, [name, gate], dims, [experts, 1])
    : weights.linear(name, dims, experts);
  const routing: DeviceRouting = {
    experts,
    each,
    scores,
    softcap: how.softcap,
    nearness: how.nearness,
    groups,
    isNormalized,
    scale,
    correction: correction ? weights.arrays.vector(correction, experts, "float32") : undefined,
    shared: { count, isGated: gate !== undefined },
  };
  return (x) => weights.device.route(x, product, routing);
}

/** Builds a mixture of experts: `name`.gate chooses among the experts in `name`.switch_mlp. */
export function routedMlp(
  weights: Weights,
  name: string,
  dims: number,
  design: ExpertDesign,
  gating: Gating = "swiglu",
): Linear {
  const { count: experts, hidden, activation, latent, identities = 0, scalesInputs } = design;
  const within = (part: string | undefined) => part && `${name}.${part}`;
  const own = design.shared ?? { name: "", width: 0 };
  const shared = { gating, ...own, name: `${name}.${own.name}`, gate: within(own.gate) };
  const sizes = { experts, dims: latent?.size ?? dims, hidden };
  arrangeExperts(weights.stored, name, sizes);
  const isPlain = !latent && !activation && !identities && !scalesInputs;
  const isAlike = isPlain && shared.gating === gating;
  const joined = isAlike ? joinShared(weights, name, sizes, shared) : 0;
  const route = router(
    weights,
    `${name}.gate`,
    { experts: experts + identities, dims },
    { ...design, correction: within(design.correction) },
    { count: joined, gate: joined > 0 ? shared.gate : undefined },
  );
  const all = { ...sizes, experts: experts + joined };
  const source = `${name}.${joined > 0 ? "all_mlps" : "switch_mlp"}`;
  const mlps = activation
    ? ungatedExpertMlps(weights, source, all, activation)
    : expertMlps(weights, source, all, gating);
  const isApart = joined === 0 && shared.width > 0;
  const always = isApart ? sharedMlp(weights, dims, shared, activation) : undefined;
  const whole: Mixture = scalesInputs
    ? ofScaledInputs(mlps)
    : (x, { chosen, shares }, residual) =>
        combined(weights, mlps, mlps(x, chosen), shares, residual);
  const small = latent ? inLatent(weights, name, dims, latent, whole) : whole;
  const mixture = identities > 0 ? withIdentities(small, experts) : small;
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const made = mixture(x, route(x), residual);
    return always ? add(made, always(x)) : made;
  };
}

/** Computes the weighted sum of a token's experts, and adds the residual if given. */
type Mixture = (x: MlxArray, routed: Routed, residual?: MlxArray) => Hidden;

/** Sums the experts' outputs `made` (T, K, D), weighted by `shares` (T, K) -> (T, D) */
export function combined(
  { device }: Weights,
  { total }: ExpertMlps,
  made: MlxArray,
  shares: MlxArray,
  residual?: MlxArray,
): Hidden {
  if (!total) return device.combine(made, shares, residual);
  const whole = total(device.combine(made, shares));
  return residual ? add(residual, whole) : whole;
}

function ofScaledInputs(mlps: ExpertMlps): Mixture {
  return (x, { chosen, shares }, residual) => {
    const open = multiply(x, astype(shares, x.dtype)); // shares (T, 1)
    const part = squeeze(mlps(open, chosen), 1);
    const made = mlps.total ? mlps.total(part) : part;
    return residual ? add(residual, made) : made;
  };
}

/** Projects down to the latent size, applies the experts there, and projects up again. */
function inLatent(
  weights: Weights,
  name: string,
  dims: number,
  { size, into, back, norm }: LatentExperts,
  mixture: Mixture,
): Mixture {
  const down = weights.linear(`${name}.${into}`, dims, size);
  const up = weights.linear(`${name}.${back}`, size, dims);
  const behind = norm ? rmsNorm(weights, `${name}.${norm.name}`, size, norm.eps) : undefined;
  return (x, routed, residual) => up(mixture(down(x), routed), { norm: behind, residual });
}

/** Adds identity experts, which have the indices from `experts` on and return their input. */
function withIdentities(mixture: Mixture, experts: number): Mixture {
  return (x, { chosen, shares }, residual) => {
    const isExpert = less(chosen, experts);
    const routed = { chosen: where(isExpert, chosen, 0), shares: where(isExpert, shares, 0) };
    const kept = sum(where(isExpert, zeros(shares.shape), shares), -1, true); // (T, 1)
    return add(mixture(x, routed, residual), multiply(x, astype(kept, x.dtype)));
  };
}

/**
 * If the file stores a shared MLP in the experts' format, appends it in `name`.all_mlps as one or more experts, so
 * that one product computes all. Returns their number; 0 if the shared MLP stays separate.
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
      weights.matrices.isLike(experts, more, sideBySide ? count : 1),
    );
  if (!isJoined) return 0;
  for (const { joined, experts, more, sideBySide } of parts) {
    weights.matrices.addExperts(joined, experts, { more, count, sideBySide });
  }
  return count;
}

function sharedMlp(
  weights: Weights,
  dims: number,
  { name, width, gate, gating }: SharedExperts,
  activation: Activation | undefined,
): Linear {
  const mlp = activation
    ? plainMlp(weights, name, dims, width, activation)
    : gatedMlp(weights, name, dims, width, gating);
  if (!gate) return mlp;
  const opening = weights.linear(gate, dims, 1);
  return (x) => multiply(mlp(x), sigmoid(opening(x)));
}
