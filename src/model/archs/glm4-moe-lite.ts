// GLM 4.7 Flash: DeepSeek V3 in other sizes.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { DeepseekConfig, deepseekDecoder } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

const Config = DeepseekConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  rope_theta: z.number().positive().default(1_000_000),
  routed_scaling_factor: z.number().positive().default(1.8),
  first_k_dense_replace: z.int().default(1),
});

export function glm4MoeLite(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  return deepseekDecoder(parsed, weights, parsed.rms_norm_eps, correctedRouting(parsed));
}
