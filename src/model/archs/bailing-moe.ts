// Ling and Ring, by inclusionAI: experts, and one matrix for queries, keys and values.
import { z } from "zod";
import { count, flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";
import { normedColumns } from "../layers/norm-head.ts";

export const bailingMoe = family({
  config: {
    ...requiredExpertKeys,
    moe_intermediate_size: count,
    moe_shared_expert_intermediate_size: count.nullish(),
    moe_router_enable_expert_bias: flag.default(false),
    moe_router_enable_shared_expert: flag.default(true),
    score_function: z.enum(["softmax", "sigmoid"]).default("softmax"),
    use_qk_norm: flag.default(false),
    norm_head: flag.default(false),
    rotary_dim: count.nullish(),
  },
  keys: { n_routed_experts: "num_experts", n_shared_experts: "num_shared_experts" },
  design: (config, weights) => {
    const { hidden_size: dims, n_group, topk_group, n_shared_experts } = config;
    const width = config.moe_shared_expert_intermediate_size ?? config.moe_intermediate_size;
    const shared = config.moe_router_enable_shared_expert ? (n_shared_experts ?? 0) : 0;
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
        shared: { name: "shared_experts", width: width * shared },
      }),
      head: config.norm_head ? (head) => normedColumns(weights, head, dims) : undefined,
      hasLayersBehind: true,
    };
  },
});
