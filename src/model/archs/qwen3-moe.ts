// Qwen 3's mixtures of experts: in most layers each token goes through a few of many small MLPs.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { parseConfig } from "../config.ts";
import { type Routing, routedMlp, type SharedExperts } from "../experts.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { QwenConfig } from "./qwen2.ts";
import { qwen3Decoder } from "./qwen3.ts";

export const MoeConfig = QwenConfig.extend({
  num_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  moe_intermediate_size: z.int().positive(),
  norm_topk_prob: z.boolean().default(false),
  decoder_sparse_step: z.int().positive().default(1),
  mlp_only_layers: z.array(z.int()).default([]),
});
export type MoeConfig = z.infer<typeof MoeConfig>;
type SparseConfig = Pick<
  MoeConfig,
  "hidden_size" | "num_experts" | "num_experts_per_tok" | "moe_intermediate_size" | "norm_topk_prob"
>;

export function qwen3Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(MoeConfig, config);
  const { hidden_size: dims, intermediate_size, mlp_only_layers, decoder_sparse_step } = parsed;
  return qwen3Decoder(parsed, weights, (name, layer) => {
    const sparse = !mlp_only_layers.includes(layer) && (layer + 1) % decoder_sparse_step === 0;
    return sparse
      ? sparseMlp(parsed, weights, name)
      : gatedMlp(weights, name, dims, intermediate_size);
  });
}

export function sparseMlp(
  config: SparseConfig,
  weights: Weights,
  name: string,
  shared?: SharedExperts,
): Linear {
  const sizes = {
    experts: config.num_experts,
    dims: config.hidden_size,
    hidden: config.moe_intermediate_size,
  };
  const routing: Routing = {
    each: config.num_experts_per_tok,
    scores: "softmax",
    isNormalized: config.norm_topk_prob,
    scale: 1,
  };
  return routedMlp(weights, name, sizes, routing, shared);
}
