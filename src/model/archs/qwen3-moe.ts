// Qwen 3's mixtures of experts: in most layers each token goes through a few of many small MLPs.
import { z } from "zod";
import { count, flag, integer } from "../config.ts";
import type { Design } from "../design.ts";
import { type ExpertDesign, expertKeys, expertsOf } from "../expert-design.ts";
import { type ConfigOf, family } from "../family.ts";
import { qwenDesign, qwenKeys } from "./qwen2.ts";

export const qwenMoeConfig = {
  ...qwenKeys,
  ...expertKeys,
  num_experts: count,
  num_experts_per_tok: count,
  moe_intermediate_size: count,
  norm_topk_prob: flag.default(false),
  decoder_sparse_step: count.default(1),
  mlp_only_layers: z.array(integer).default([]),
};
type Config = ConfigOf<typeof qwenMoeConfig>;

export const qwen3Moe = family({ config: qwenMoeConfig, design: qwen3MoeDesign });

export function qwen3MoeDesign(config: Config): Design {
  return { ...qwenDesign(config), headNorms: ["q_norm", "k_norm"], experts: qwenExperts(config) };
}

/** `width` of an MLP that all tokens go through, with a gate; 0 for none. */
export function qwenExperts(config: Config, width = 0): ExpertDesign {
  const { mlp_only_layers, decoder_sparse_step } = config;
  return expertsOf(config, {
    count: config.num_experts,
    isSparse: (layer) =>
      !mlp_only_layers.includes(layer) && (layer + 1) % decoder_sparse_step === 0,
    shared: { name: "shared_expert", width, gate: "shared_expert_gate" },
  });
}
