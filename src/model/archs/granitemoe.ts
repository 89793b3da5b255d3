// Granite 3 with experts.
import { integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { granite } from "./granite.ts";

export const graniteMoe = family({
  like: granite,
  config: {
    ...expertKeys,
    n_routed_experts: integer.nullish(),
    num_experts_per_tok: integer.nullish(),
  },
  keys: { n_routed_experts: "num_local_experts" },
  // The authors' files have the gate and up matrices of all experts in one tensor.
  names: {
    ".mlp.input_linear.weight": ".mlp.experts.gate_up_proj",
    ".mlp.output_linear.weight": ".mlp.experts.down_proj",
  },
  design: (config) => ({ experts: expertsOf(config) }),
});
