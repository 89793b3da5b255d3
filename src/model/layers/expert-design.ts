// Declares experts as a part of a family's design, and their configuration keys.
import { z } from "zod";
import type { Gating } from "../../device/device.ts";
import type { Routing as DeviceRouting } from "../../kernels/token/routing.ts";
import { type BaseConfig, count, layerTypes, positive } from "../checkpoint/config.ts";
import type { Activation } from "./activations.ts";

export type Routing = Partial<Omit<DeviceRouting, "experts" | "each" | "correction" | "shared">> & {
  each: number;
  /** Name of the correction (experts): added to scores to choose experts, but not to make routing weights. */
  correction?: string | undefined;
};

/** Design of a layer's experts. Names are relative to the MLP's name. */
export type ExpertDesign = Routing & {
  count: number;
  /** Width of one expert. */
  hidden: number;
  /** Whether a layer has experts; undefined for all layers. */
  isSparse?: ((layer: number) => boolean) | undefined;
  shared?: SharedExperts | undefined;
  /** Activation of experts without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  latent?: LatentExperts | undefined;
  /** Number of identity experts, which return their input. */
  identities?: number | undefined;
  /** Whether routing weights scale experts' inputs instead of outputs. Only with one expert per token. */
  scalesInputs?: boolean | undefined;
};

/** Experts on a smaller state: its size, projections down (`into`) and up (`back`), and a norm before `back`. */
export type LatentExperts = {
  size: number;
  into: string;
  back: string;
  norm?: { name: string; eps: number } | undefined;
};

/** An MLP that processes all tokens; width 0 for none. */
export type SharedExperts = {
  name: string;
  width: number;
  /** Name of the gate's matrix (1, D). */
  gate?: string | undefined;
  /** Gating of the shared MLP; by default the experts'. */
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
  /** Kind of each layer, in place of first_k_dense_replace and moe_layer_freq. */
  mlp_layer_types: layerTypes("dense", "sparse").nullish(),
};

/** Expert keys for families whose configurations always have them. */
export const requiredExpertKeys = {
  ...expertKeys,
  n_routed_experts: count,
  num_experts_per_tok: count,
};

/** Makes mlp_layer_types from flags that tell whether a layer has experts. */
export const mlpTypes = (marks: readonly (number | boolean)[] | null | undefined) =>
  marks?.map((isSparse) => (isSparse ? "sparse" : "dense"));

type ExpertsConfig = Pick<BaseConfig, "intermediate_size"> &
  z.infer<z.ZodObject<typeof expertKeys>>;

/** Makes a design of experts with softmax routing from the configuration; `own` overrides fields. */
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

/** Routing by sigmoid scores, with a correction that is added when experts are chosen. */
export const correctedScores = {
  scores: "sigmoid",
  correction: "gate.e_score_correction_bias",
} as const;
