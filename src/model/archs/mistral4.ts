// Mistral 4: DeepSeek's latent attention, with queries that grow with their position, and experts chosen by softmax.
import { z } from "zod";
import { add, astype, floorDivide, log, multiply } from "../../mlx/ops.ts";
import { parseConfig, RopeScaling } from "../config.ts";
import { splitExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { DeepseekConfig, deepseekAttention, expertLayers, LATENT_EPS } from "./deepseek-v2.ts";

const Config = DeepseekConfig.extend({
  rope_interleave: z.literal(true).nullish(),
  rope_parameters: RopeScaling.extend({
    rope_theta: z.number().positive().default(100_000),
    llama_4_scaling_beta: z.number(),
    original_max_position_embeddings: z.int().positive(),
  }),
});

export function mistral4(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { n_group: count, topk_group: kept, rope_parameters } = parsed;
  const { llama_4_scaling_beta: beta, original_max_position_embeddings: every } = rope_parameters;
  const routing = {
    each: parsed.num_experts_per_tok ?? 1,
    scores: "softmax" as const,
    groups: count && kept ? { count, kept, best: 2 } : undefined,
    isNormalized: parsed.norm_topk_prob,
    scale: parsed.routed_scaling_factor,
  };
  const makeMlp = expertLayers(parsed, weights, () => routing);
  const attention = deepseekAttention(parsed, weights, LATENT_EPS);
  return transformer(parsed, weights, {
    mix: (name, _, states) =>
      attention(name, states, {
        queryScale: (positions) => {
          const stage = astype(floorDivide(positions, every), "float32");
          return add(multiply(log(add(stage, 1)), beta), 1);
        },
      }),
    mlp: (name, layer) => {
      if (weights.has(`${name}.experts.gate_up_proj`)) {
        splitExperts(weights, `${name}.experts.gate_up_proj`, `${name}.switch_mlp`);
        weights.rename({ [`${name}.experts.down_proj`]: `${name}.switch_mlp.down_proj.weight` });
      }
      return makeMlp(name, layer);
    },
  });
}
