// Granite 3 with experts.
import { count } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import { graniteFactors, graniteKeys } from "./granite.ts";

/** The authors' files have the halves of all experts in one tensor. */
export const graniteNames = {
  ".mlp.input_linear.weight": ".mlp.experts.gate_up_proj",
  ".mlp.output_linear.weight": ".mlp.experts.down_proj",
};

export const graniteMoe = family({
  config: { ...graniteKeys, ...expertKeys, n_routed_experts: count, num_experts_per_tok: count },
  keys: { n_routed_experts: "num_local_experts" },
  names: graniteNames,
  design: (config) => ({ ...graniteFactors(config), experts: expertsOf(config) }),
});
