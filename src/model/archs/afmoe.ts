// Trinity, by Arcee: norms before and after attention and MLP, gated attention, RoPE only in layers with a window.
import { z } from "zod";
import { count, flag, layerTypes } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";

export const afmoe = family({
  config: {
    ...requiredExpertKeys,
    layer_types: layerTypes("full_attention", "sliding_attention"),
    moe_intermediate_size: count,
    score_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
    mup_enabled: flag.default(true),
  },
  defaults: { n_shared_experts: 1, first_k_dense_replace: 2, routed_scaling_factor: 2.826 },
  keys: {
    n_routed_experts: "num_experts",
    n_shared_experts: "num_shared_experts",
    first_k_dense_replace: "num_dense_layers",
    norm_topk_prob: "route_norm",
    routed_scaling_factor: "route_scale",
  },
  design: (config) => ({
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      mlp: "pre_mlp_layernorm",
      afterMlp: "post_mlp_layernorm",
    },
    headNorms: ["q_norm", "k_norm"],
    outputGate: { name: "gate_proj" },
    rope: (whole, window) => (window === undefined ? undefined : whole()),
    experts: expertsOf(config, { scores: config.score_func, correction: "expert_bias" }),
    embeddingScale: config.mup_enabled ? config.hidden_size ** 0.5 : 1,
  }),
});
