// Mellum: Qwen 3's experts; some layers have a window and a RoPE of their own.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";
import { localRopeKeys } from "./gemma3-text.ts";

export const mellum = family({
  config: { ...localRopeKeys, ...requiredExpertKeys, moe_intermediate_size: count },
  keys: { n_routed_experts: "num_experts" },
  design: (config) => ({
    headNorms: ["q_norm", "k_norm"],
    localRopeBase: config.rope_local_base_freq,
    experts: expertsOf(config),
  }),
});
