// LFM 2 with experts in all but the first layers.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { LfmConfig, lfmDecoder, nameMlp } from "./lfm2.ts";

const Config = LfmConfig.extend({
  num_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  moe_intermediate_size: z.int().positive(),
  num_dense_layers: z.int(),
  norm_topk_prob: z.boolean(),
  use_expert_bias: z.boolean(),
  routed_scaling_factor: z.number().default(1),
});
type Config = z.infer<typeof Config>;

export function lfm2Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  return lfmDecoder(parsed, weights, (name, layer) => {
    if (layer >= parsed.num_dense_layers) return sparseMlp(parsed, weights, name);
    nameMlp(weights, name);
    return gatedMlp(weights, name, dims, intermediate_size);
  });
}

function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, num_experts: experts, moe_intermediate_size: hidden } = config;
  stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
  return routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    {
      each: config.num_experts_per_tok,
      scores: "sigmoid",
      correction: config.use_expert_bias ? `${name}.expert_bias` : undefined,
      isNormalized: config.norm_topk_prob,
      scale: config.routed_scaling_factor,
    },
  );
}
