// Experts as a family's design has them, and as configurations have them.
import { z } from "zod";
import type { Gating } from "../../device/device.ts";
import type { Routing as DeviceRouting } from "../../kernels/token/routing.ts";
import { type BaseConfig, count, layerTypes, positive } from "../checkpoint/config.ts";
import type { Activation } from "./activations.ts";

export type Routing = Partial<Omit<DeviceRouting, "experts" | "each" | "correction" | "shared">> & {
  each: number;
  /** The name of a tensor (experts) that is added to scores when experts are chosen, but not to their shares. */
  correction?: string | undefined;
};

/** Of layers with experts. Names are parts of the MLP's. */
export type ExpertDesign = Routing & {
  count: number;
  /** The width of one. */
  hidden: number;
  /** Whether a layer has them; all have unless it says. */
  isSparse?: ((layer: number) => boolean) | undefined;
  shared?: SharedExperts | undefined;
  /** Without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  latent?: LatentExperts | undefined;
  /** So many more that give back what they get. */
  identities?: number | undefined;
  /** Shares are of what experts take, and not of what they make: where a token has one. */
  scalesInputs?: boolean | undefined;
};

/** Experts of a smaller vector: its size, the matrices into it and back, and in some a norm between. */
export type LatentExperts = {
  size: number;
  into: string;
  back: string;
  norm?: { name: string; eps: number } | undefined;
};

/** One MLP that all tokens go through; 0 is the width of none. */
export type SharedExperts = {
  name: string;
  width: number;
  /** The name of a row (1, D): how far it is open. */
  gate?: string | undefined;
  /** As that of the experts unless it says. */
  gating?: Gating | undefined;
};

/** What configurations say of experts, in DeepSeek's words. */
export const expertKeys = {
  n_routed_experts: count.nullish(),
  num_experts_per_tok: count.nullish(),
  moe_intermediate_size: count.nullish(),
  n_shared_experts: z.int().nullish(),
  n_group: count.nullish(),
  topk_group: count.nullish(),
  norm_topk_prob: z.boolean().default(true),
  routed_scaling_factor: positive.nullish(),
  first_k_dense_replace: z.int().default(0),
  moe_layer_freq: count.default(1),
  /** In place of both. */
  mlp_layer_types: layerTypes("dense", "sparse").nullish(),
};

/** Of families whose models all have them. */
export const requiredExpertKeys = {
  ...expertKeys,
  n_routed_experts: count,
  num_experts_per_tok: count,
};

/** mlp_layer_types of a flag per layer: whether it has experts. */
export const mlpTypes = (marks: readonly (number | boolean)[] | null | undefined) =>
  marks?.map((isSparse) => (isSparse ? "sparse" : "dense"));

type ExpertsConfig = Pick<BaseConfig, "intermediate_size"> &
  z.infer<z.ZodObject<typeof expertKeys>>;

/** Softmax and all that the configuration says; `own` is what it does not. */
export function expertsOf(config: ExpertsConfig, own: Partial<ExpertDesign> = {}): ExpertDesign {
  const { n_group, topk_group, first_k_dense_replace: dense, moe_layer_freq: each } = config;
  const { mlp_layer_types: types } = config;
  const hidden = own.hidden ?? config.moe_intermediate_size ?? config.intermediate_size;
  return {
    count: config.n_routed_experts ?? 0,
    each: config.num_experts_per_tok ?? 1,
    hidden,
    groups: n_group && topk_group ? { count: n_group, kept: topk_group, best: 2 } : undefined,
    isNormalized: config.norm_topk_prob,
    scale: config.routed_scaling_factor ?? 1,
    shared: { name: "shared_experts", width: hidden * (config.n_shared_experts ?? 0) },
    isSparse: (layer) => (types ? types[layer] === "sparse" : layer >= dense && layer % each === 0),
    ...own,
  };
}

/** Scores are sigmoids, and a correction is added when experts are chosen. */
export const correctedScores = {
  scores: "sigmoid",
  correction: "gate.e_score_correction_bias",
} as const;
