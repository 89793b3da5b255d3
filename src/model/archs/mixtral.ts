// Mixtral: Llama with experts in every layer.
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

export const mixtral = family({
  config: expertKeys,
  defaults: { rope_theta: 1_000_000, n_routed_experts: 8, num_experts_per_tok: 2 },
  keys: { n_routed_experts: "num_local_experts" },
  design: (config) => ({ slides: () => true, experts: expertsOf(config) }),
});
