// Mixtral: Llama with experts in every layer.
import { count, positive } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";

export const mixtral = family({
  config: {
    ...expertKeys,
    rope_theta: positive.default(1_000_000),
    n_routed_experts: count.default(8),
    num_experts_per_tok: count.default(2),
  },
  keys: { n_routed_experts: "num_local_experts" },
  names: { ".block_sparse_moe.": ".mlp." },
  design: (config) => ({ slides: () => true, experts: expertsOf(config) }),
});
