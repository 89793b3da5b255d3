// Phi 3.5 MoE: layer norms, biases, and experts chosen one after the other.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { layerNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  max_position_embeddings: z.int().positive().default(131_072),
  original_max_position_embeddings: z.int().positive().default(4096),
  num_local_experts: z.int().positive().default(16),
  num_experts_per_tok: z.int().positive().default(2),
  router_jitter_noise: z.number().nonnegative().default(0.01),
  tie_word_embeddings: z.boolean().default(false),
});

export function phimoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, num_local_experts: experts } = parsed;
  const { rope_scaling, original_max_position_embeddings } = parsed;
  // The length it was trained with first stands beside the scaling, not in it.
  const scaling = rope_scaling && { original_max_position_embeddings, ...rope_scaling };
  weights.renameParts({ ".block_sparse_moe.": ".mlp." });
  return transformer({ ...parsed, rope_scaling: scaling }, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, parsed.rms_norm_eps),
    slides: () => true,
    mlp: (name) => {
      stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
      return routedMlp(
        weights,
        name,
        { experts, dims, hidden },
        {
          each: parsed.num_experts_per_tok,
          scores: "sparsemixer",
          nearness: 2 * parsed.router_jitter_noise,
          isNormalized: false,
          scale: 1,
        },
      );
    },
  });
}
