// Ling and Ring, by inclusionAI: experts, and one matrix for queries, keys and values.
import { z } from "zod";
import { count, flag, share } from "../config.ts";
import type { Design } from "../design.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { type ConfigOf, family } from "../family.ts";
import { normedColumns } from "../norm-head.ts";
import type { Weights } from "../weights.ts";

export const bailingConfig = {
  ...expertKeys,
  moe_intermediate_size: count,
  moe_shared_expert_intermediate_size: count.nullish(),
  moe_router_enable_expert_bias: flag.default(false),
  moe_router_enable_shared_expert: flag.default(true),
  n_routed_experts: count,
  num_experts_per_tok: count,
  score_function: z.enum(["softmax", "sigmoid"]).default("softmax"),
  use_qk_norm: flag.default(false),
  norm_head: flag.default(false),
  partial_rotary_factor: share.default(1),
  rotary_dim: count.nullish(),
};

export const bailingKeys = {
  n_routed_experts: "num_experts",
  n_shared_experts: "num_shared_experts",
};

export const bailingMoe = family({
  config: bailingConfig,
  keys: bailingKeys,
  design: bailingDesign,
});

export function bailingDesign(config: ConfigOf<typeof bailingConfig>, weights: Weights): Design {
  const { hidden_size: dims, n_group, topk_group, n_shared_experts } = config;
  const isShared = config.moe_router_enable_shared_expert;
  const width = config.moe_shared_expert_intermediate_size ?? config.moe_intermediate_size;
  return {
    headNorms: config.use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
    rotaryDims: config.rotary_dim,
    experts: expertsOf(config, {
      scores: config.score_function,
      correction: config.moe_router_enable_expert_bias ? "gate.expert_bias" : undefined,
      groups:
        n_group && n_group > 1
          ? { count: n_group, kept: topk_group ?? 1, best: 2, leavesOut: true }
          : undefined,
      shared: { name: "shared_experts", width: isShared ? width * (n_shared_experts ?? 0) : 0 },
    }),
    head: config.norm_head ? (head) => normedColumns(weights, head, dims) : undefined,
    hasLayersBehind: true,
  };
}
