// K-EXAONE: experts chosen as in DeepSeek V3, windows in most layers, and RoPE only in these.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

const count = z.int().positive();

const Config = ExpertsConfig.extend({
  rope_theta: z.number().positive().default(1_000_000),
  num_experts: count,
  num_shared_experts: z.int().nullish(),
  layer_types: z.array(z.enum(["full_attention", "sliding_attention"])),
  is_moe_layer: z.array(z.boolean()),
  routed_scaling_factor: z.number().positive().default(2.5),
}).transform(({ num_experts, num_shared_experts, ...rest }) => ({
  ...rest,
  n_routed_experts: num_experts,
  n_shared_experts: num_shared_experts || undefined,
}));

export function exaoneMoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, layer_types, is_moe_layer } = parsed;
  const hasWindows = layer_types.includes("sliding_attention");
  const makeExperts = expertLayers(parsed, weights, correctedRouting(parsed));
  return transformer(parsed, weights, {
    headNorms: ["q_norm", "k_norm"],
    rope: (whole, window) => (window !== undefined || !hasWindows ? whole() : undefined),
    mlp: (name, layer) => {
      if (!is_moe_layer[layer]) return gatedMlp(weights, name, dims, intermediate_size);
      weights.rename({ [`${name}.e_score`]: `${name}.gate.e_score` });
      return makeExperts(name, layer);
    },
    ignored: /^mtp\./,
  });
}
