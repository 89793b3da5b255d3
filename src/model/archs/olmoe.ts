// OLMoE: experts in every layer; query and key norms span all heads.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

export const olmoe = family({
  config: { ...expertKeys, n_routed_experts: count, num_experts_per_tok: count },
  defaults: { norm_topk_prob: false },
  keys: { n_routed_experts: "num_experts" },
  design: (config) => ({ normsAllHeads: true, experts: expertsOf(config) }),
});
