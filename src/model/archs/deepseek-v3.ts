// DeepSeek V3, R1 and Kimi K2: experts are chosen by sigmoids with a correction, from the groups whose two best are best.
import { parseConfig } from "../config.ts";
import type { Routing } from "../experts.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { DeepseekConfig, deepseekDecoder, type ExpertsConfig, LATENT_EPS } from "./deepseek-v2.ts";

export function deepseekV3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(DeepseekConfig, config);
  return deepseekDecoder(parsed, weights, LATENT_EPS, correctedRouting(parsed));
}

export function correctedRouting(config: ExpertsConfig): (name: string) => Routing {
  const { n_group, topk_group } = config;
  return (name) => ({
    each: config.num_experts_per_tok ?? 1,
    scores: "sigmoid",
    correction: `${name}.gate.e_score_correction_bias`,
    groups: n_group && topk_group ? { count: n_group, kept: topk_group, best: 2 } : undefined,
    isNormalized: config.norm_topk_prob,
    scale: config.routed_scaling_factor,
  });
}
