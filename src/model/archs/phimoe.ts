// Phi 3.5 MoE: layer norms, biases, and experts chosen one after the other.
import { z } from "zod";
import { count } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import { phiKeys, phiScaling } from "./phi3.ts";

export const phimoe = family({
  config: {
    ...phiKeys,
    ...expertKeys,
    n_routed_experts: count.default(16),
    num_experts_per_tok: count.default(2),
    router_jitter_noise: z.number().nonnegative().default(0.01),
    tie_word_embeddings: z.boolean().default(false),
  },
  keys: { n_routed_experts: "num_local_experts" },
  names: { ".block_sparse_moe.": ".mlp." },
  design: (config) => ({
    config: phiScaling(config),
    isLayerNorm: true,
    slides: () => true,
    experts: expertsOf(config, {
      scores: "sparsemixer",
      nearness: 2 * config.router_jitter_noise,
      isNormalized: false,
    }),
  }),
});
