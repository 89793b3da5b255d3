// MoE routing and the weighted sum of expert outputs, with our own kernels; MLX needs a dozen launches.
import { array, type MlxArray } from "../../mlx/array.ts";
import { bytesOf } from "../../mlx/dtype.ts";
import { type Language, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { flatten } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import { Recent } from "../host/recent.ts";
import combineBody from "./combine.c" with { type: "text" };
import routeBody from "./route.c" with { type: "text" };

export type Routing = {
  experts: number;
  /** Experts per token (top-k). */
  each: number;
  scores: "softmax" | "sigmoid" | "sqrtsoftplus" | "sparsemixer";
  /** Cap of the logits, which are first soft-capped to (-cap, cap). */
  softcap?: number | undefined;
  /** "sparsemixer" only: relative distance from the best logit within which logits take part in its softmax. */
  nearness?: number | undefined;
  /** Numbers (experts), float32, that are added to scores for choosing experts, but not for their routing weights. */
  correction?: MlxArray | undefined;
  groups?: ExpertGroups | undefined;
  /** Whether the routing weights of a token's experts are normalized to a sum of 1, before scaling. */
  isNormalized: boolean;
  scale: number;
  /** Shared experts, which all tokens use. They follow the chosen ones, with a gate of their own or the weight 1. */
  shared: { count: number; isGated: boolean };
};

/**
 * Group-limited routing: experts are chosen from the `kept` best groups, ranked by the sum of their `best` highest
 * scores. Experts of other groups are excluded if `leavesOut` is set. Otherwise they get the score 0, which may
 * exceed a corrected score.
 */
export type ExpertGroups = {
  count: number;
  kept: number;
  best: number;
  leavesOut?: boolean | undefined;
};

export type Routed = {
  /** Indices of each token's experts, (T, K). */
  chosen: MlxArray;
  /** Weights of the experts' outputs, (T, K), float32. */
  shares: MlxArray;
};

/** Limits of the kernel: a warp holds all scores in registers, each chosen expert in one lane. */
const MOST_EXPERTS = 1024;
const MOST_EACH = 32;
const MOST_GROUPS = 32;

export function fitsRouting({ experts, each, scores, softcap, groups, shared }: Routing): boolean {
  if ((scores !== "softmax" && scores !== "sigmoid") || softcap !== undefined) return false;
  const inLanes = each + shared.count <= MOST_EACH && each <= experts;
  return experts <= MOST_EXPERTS && inLanes && (groups?.count ?? 1) <= MOST_GROUPS;
}

const THREADS = 256;
/** Maximum layers whose packed parameters are kept, over models that are loaded or were recently. */
const MOST_LAYERS = 1024;

/** Maximum warps per CTA that compute scores; maximum tokens for which that is faster than a matrix product. */
const SCORING_WARPS = 32;
const MOST_SCORED = 128;

/** Whether `RoutingKernels.route` can compute these tokens' scores, and faster than a matrix product does. */
export function fitsScoring(x: MlxArray, matrix: MlxArray): boolean {
  const [tokens, dims] = x.shape as [number, number];
  return tokens <= MOST_SCORED && x.dtype === matrix.dtype && (dims * bytesOf(x.dtype)) % 16 === 0;
}

export class RoutingKernels {
  readonly #kernels: KernelCache;
  /** Kernels that also compute the router's scores. */
  readonly #scoring: KernelCache;
  readonly #numbers = new Recent<Routing, MlxArray>(MOST_LAYERS);

  constructor(language: Language, make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache(language, make);
    this.#scoring = new KernelCache(language, make, {
      defines: [`LAUNCH_BOUNDS ${SCORING_WARPS * 32}`],
    });
  }

  /**
   * Chooses experts. `raw`: the router's logits (T, experts), plus one column if shared experts have a gate. With the
   * router's `matrix`, `raw` has the tokens (T, D) instead; this requires fitsScoring.
   */
  route(raw: MlxArray, routing: Routing, matrix?: MlxArray): Routed {
    const { experts, each, scores, correction, groups, isNormalized, shared } = routing;
    const tokens = raw.shape[0]!;
    const shape = [tokens, each + shared.count];
    const numbers = this.#numbersOf(routing);
    const inputs = { raw, matrix: matrix ?? numbers, numbers };
    const width = experts + (shared.isGated ? 1 : 0);
    // A warp computes two scores at a time.
    const warps = matrix ? Math.min(SCORING_WARPS, Math.ceil(width / 2)) : 1;
    const outputs = ["chosen", "shares"];
    const [kernels, name] = matrix ? [this.#scoring, "score"] : [this.#kernels, "route"];
    const [chosen, shares] = kernels.runAll(name, routeBody, inputs, outputs, {
      outputs: [
        { shape, dtype: "uint32" },
        { shape, dtype: "float32" },
      ],
      grid: [tokens * warps * 32, 1, 1],
      threadGroup: [warps * 32, 1, 1],
      template: {
        T: raw.dtype,
        WIDTH: width,
        DIMS: matrix ? raw.shape[1]! : 0,
        EXPERTS: experts,
        EACH: each,
        ALWAYS: shared.count,
        GATED: shared.isGated,
        SOFTMAX: scores === "softmax",
        CORRECTED: correction !== undefined,
        NORMALIZED: isNormalized && each > 1,
        GROUPS: groups?.count ?? 1,
        KEPT: groups?.kept ?? 1,
        BEST: groups?.best ?? 1,
        LEAVES_OUT: groups?.leavesOut ?? false,
        WARPS: warps,
      },
    });
    return { chosen: chosen!, shares: shares! };
  }

  /** Sums expert outputs `made` (T, K, D), weighted by shares (T, K), plus residual (T, D) -> (T, D). */
  combine(made: MlxArray, shares: MlxArray, residual: MlxArray | undefined): MlxArray {
    const [tokens, each, dims] = made.shape as [number, number, number];
    const inputs = { made, shares, residual: residual ?? made };
    return this.#kernels.run("combine", combineBody, inputs, "sums", {
      outputs: [{ shape: [tokens, dims], dtype: made.dtype }],
      grid: [Math.ceil(dims / (2 * THREADS)) * THREADS, tokens, 1],
      threadGroup: [THREADS, 1, 1],
      template: { T: made.dtype, EACH: each, DIMS: dims, RESIDUAL: residual !== undefined },
    });
  }

  free(): void {
    this.#kernels.free();
    this.#scoring.free();
    this.#numbers.free();
  }

  /** Returns the scale at index 0, and the corrections from index 8 on (route.c). */
  #numbersOf(routing: Routing): MlxArray {
    return this.#numbers.get(routing, () => {
      using _ = new Scope();
      const { scale, correction } = routing;
      const corrections = correction ? flatten(correction).numbers() : [];
      const made = hold(array(Float32Array.of(scale, 0, 0, 0, 0, 0, 0, 0, ...corrections)));
      made.evaluate();
      return made;
    });
  }
}
