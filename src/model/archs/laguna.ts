// Laguna, by Poolside: head counts and RoPE differ by layer; attention's output has a gate per head.
import { z } from "zod";
import { astype, logAddExp } from "../../mlx/ops.ts";
import { count, flag, headsOf, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

export const laguna = family({
  config: {
    ...expertKeys,
    gating: flag.default(true),
    num_attention_heads_per_layer: z.array(count).nullish(),
    shared_expert_intermediate_size: count.default(512),
    moe_router_logit_softcapping: real.default(0),
    moe_router_score_func: z.enum(["sigmoid", "sqrtsoftplus"]).default("sigmoid"),
  },
  defaults: {
    head_dim: 128,
    sliding_window: 512,
    n_routed_experts: 256,
    num_experts_per_tok: 8,
    moe_intermediate_size: 512,
    routed_scaling_factor: 1,
    first_k_dense_replace: 1,
  },
  keys: { n_routed_experts: "num_experts", routed_scaling_factor: "moe_routed_scaling_factor" },
  names: { ".mlp.experts.e_score_correction_bias": ".mlp.gate.e_score_correction_bias" },
  design: ({ num_attention_heads_per_layer: listed, ...config }) => ({
    headNorms: ["q_norm", "k_norm"],
    heads: (layer) =>
      headsOf({ ...config, num_attention_heads: listed?.[layer] ?? config.num_attention_heads }),
    outputGate: config.gating
      ? { name: "g_proj", isPerHead: true, open: (x) => logAddExp(astype(x, "float32"), 0) }
      : undefined,
    experts: expertsOf(config, {
      scores: config.moe_router_score_func,
      softcap: config.moe_router_logit_softcapping || undefined,
      correction: "gate.e_score_correction_bias",
      isNormalized: true,
      shared: { name: "shared_expert", width: config.shared_expert_intermediate_size },
    }),
  }),
});
