// Qwen 3's mixtures of experts: in most layers each token goes through a few of many small MLPs.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { parseConfig } from "../config.ts";
import type { DecoderOptions } from "../decoder.ts";
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
  return qwen3MoeDecoder(parseConfig(MoeConfig, config), weights);
}

export function qwen3MoeDecoder(
  config: MoeConfig,
  weights: Weights,
  options?: DecoderOptions,
): Model {
  const { hidden_size: dims, intermediate_size } = config;
  const makeMlp = (name: string, layer: number) =>
    isSparse(config, layer)
      ? sparseMlp(config, weights, name)
      : gatedMlp(weights, name, dims, intermediate_size);
  return qwen3Decoder(config, weights, makeMlp, options);
}

/** Whether a layer has experts. */
export function isSparse(
  {
    num_experts,
    mlp_only_layers,
    decoder_sparse_step,
  }: Pick<MoeConfig, "num_experts" | "mlp_only_layers" | "decoder_sparse_step">,
  layer: number,
): boolean {
  const isListed = mlp_only_layers.includes(layer);
  return num_experts > 0 && !isListed && (layer + 1) % decoder_sparse_step === 0;
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
