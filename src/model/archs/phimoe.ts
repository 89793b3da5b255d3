// Phi 3.5 MoE: layer norms, biases, and sparsemixer routing, which chooses two experts one after the other.
import { real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { phi3 } from "./phi3.ts";

export const phimoe = family({
  like: phi3,
  config: { ...expertKeys, router_jitter_noise: real.nonnegative().default(0.01) },
  defaults: { n_routed_experts: 16, num_experts_per_tok: 2, tie_word_embeddings: false },
  keys: { n_routed_experts: "num_local_experts" },
  design: (config) => ({
    isLayerNorm: true,
    experts: expertsOf(config, {
      scores: "sparsemixer",
      nearness: 2 * config.router_jitter_noise,
      isNormalized: false,
    }),
  }),
});
