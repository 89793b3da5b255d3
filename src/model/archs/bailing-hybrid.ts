// Ring 2.5: attention whose heads forget at a fixed rate in most layers, latent attention in the others. Its successor
// has the same model_type.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { bailingDecoder } from "./bailing-moe.ts";
import { fadingAttention, isGlobal, LinearConfig } from "./bailing-moe-linear.ts";
import { bailingMoeV3, latentKeys } from "./bailing-moe-v3.ts";
import { deepseekAttention } from "./deepseek-v2.ts";

const Config = LinearConfig.extend({
  ...latentKeys,
  partial_rotary_factor: z.number().positive().max(1).default(0.5),
  use_qk_norm: z.boolean().default(true),
  score_function: z.enum(["softmax", "sigmoid"]).default("sigmoid"),
  moe_router_enable_expert_bias: z.boolean().default(true),
});

const V3 = z.looseObject({ architectures: z.tuple([z.literal("BailingMoeV3ForCausalLM")]) });

export function bailingHybrid(config: unknown, weights: Weights): Model {
  if (V3.safeParse(config).success) return bailingMoeV3(config, weights);
  const parsed = parseConfig(Config, config);
  const { num_hidden_layers: layers } = parsed;
  const latent = deepseekAttention(parsed, weights, parsed.rms_norm_eps);
  return bailingDecoder(parsed, weights, (name, layer, states) =>
    isGlobal(parsed, layer)
      ? latent(name, states)
      : fadingAttention(parsed, weights, name, states, 1 - layer / Math.max(1, layers - 1)),
  );
}
