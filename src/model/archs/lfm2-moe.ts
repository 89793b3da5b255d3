// LFM 2 with experts in all but the first layers.
import { count, flag, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";
import { lfm2 } from "./lfm2.ts";

export const lfm2Moe = family({
  like: lfm2,
  config: {
    ...requiredExpertKeys,
    moe_intermediate_size: count,
    first_k_dense_replace: integer,
    norm_topk_prob: flag,
    use_expert_bias: flag,
  },
  keys: { n_routed_experts: "num_experts", first_k_dense_replace: "num_dense_layers" },
  design: (config) => ({
    hidden: config.intermediate_size,
    experts: expertsOf(config, {
      scores: "sigmoid",
      correction: config.use_expert_bias ? "expert_bias" : undefined,
    }),
  }),
});
