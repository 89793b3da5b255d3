// Experts as a family's design declares them, and their configuration keys.
import { z } from "zod";
import type { Gating } from "../../device/device.ts";
import type { Routing as DeviceRouting } from "../../kernels/token/routing.ts";
import { type BaseConfig, count, layerTypes, positive } from "../checkpoint/config.ts";
import type { Activation } from "./activations.ts";

export type Routing = Partial<Omit<DeviceRouting, "experts" | "each" | "correction" | "shared">> & {
  each: number;
  /** Name of a tensor (experts) added to scores when experts are chosen, but not to their weights. */
  correction?: string | undefined;
};

/** Experts of a layer. Names are relative to the MLP's. */
export type ExpertDesign = Routing & {
  count: number;
  /** Width of one expert. */
  hidden: number;
  /** Whether a layer has experts; undefined for all layers. */
  isSparse?: ((layer: number) => boolean) | undefined;
  shared?: SharedExperts | undefined;
  /** For experts without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  latent?: LatentExperts | undefined;
  /** Number of identity experts, which return their input. */
  identities?: number | undefined;
  /** Weights scale the experts' inputs, not their outputs. Only with one expert per token. */
  scalesInputs?: boolean | undefined;
};

/** Experts in a smaller space: its size, the projections down and up, and an optional norm between. */
export type LatentExperts = {
  size: number;
  into: string;
  back: string;
  norm?: { name: string; eps: number } | undefined;
};

/** An MLP that all tokens go through; width 0 for none. */
export type SharedExperts = {
  name: string;
  width: number;
  /** Name of the gate's row (1, D). */
  gate?: string | undefined;
  /** Defaults to the experts' gating. */
  gating?: Gating | undefined;
};

/** Configuration keys of experts, named as in DeepSeek's. */
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
  /** Replaces both. */
  mlp_layer_types: layerTypes("dense", "sparse").nullish(),
};

/** For families whose configurations always have them. */
export const requiredExpertKeys = {
  ...expertKeys,
  n_routed_experts: count,
  num_experts_per_tok: count,
};

/** mlp_layer_types from a flag per layer: whether it has experts. */
export const mlpTypes = (marks: readonly (number | boolean)[] | null | undefined) =>
  marks?.map((isSparse) => (isSparse ? "sparse" : "dense"));

type ExpertsConfig = Pick<BaseConfig, "intermediate_size"> &
  z.infer<z.ZodObject<typeof expertKeys>>;

/** Softmax routing from the configuration; `own` overrides. */
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

/** Sigmoid scores, with a correction added when experts are chosen. */
export const correctedScores = {
  scores: "sigmoid",
  correction: "gate.e_score_correction_bias",
} as const;
