// Granite 3 with experts.
import { count } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import { graniteFactors, graniteKeys } from "./granite.ts";

/** The authors' files have the halves of all experts in one tensor. */
export const graniteNames = {
  ".block_sparse_moe.router.layer.": ".mlp.gate.",
  ".block_sparse_moe.input_linear.weight": ".mlp.experts.gate_up_proj",
  ".block_sparse_moe.output_linear.weight": ".mlp.experts.down_proj",
  ".block_sparse_moe.": ".mlp.",
};

export const graniteMoe = family({
  config: { ...graniteKeys, ...expertKeys, n_routed_experts: count, num_experts_per_tok: count },
  keys: { n_routed_experts: "num_local_experts" },
  names: graniteNames,
  design: (config) => ({ ...graniteFactors(config), experts: expertsOf(config) }),
});
