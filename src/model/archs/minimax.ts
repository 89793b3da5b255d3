// MiniMax M2: experts in every layer, norms over all of the queries and keys, and RoPE over a part of each head.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import { attentionLayers, preNormDecoder } from "../pre-norm-decoder.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  num_local_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  rotary_dim: z.int().positive(),
  use_qk_norm: z.boolean().default(true),
  scoring_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
});

export function minimax(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, num_local_experts: experts } = parsed;
  const norms = parsed.use_qk_norm ? "all" : undefined;
  return preNormDecoder(
    parsed,
    weights,
    attentionLayers(parsed, weights, { rotary: parsed.rotary_dim, norms }),
    (name) => {
      stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
      return routedMlp(
        weights,
        name,
        { experts, dims, hidden },
        {
          each: parsed.num_experts_per_tok,
          scores: parsed.scoring_func,
          correction: `${name}.e_score_correction_bias`,
          isNormalized: true,
          scale: 1,
        },
      );
    },
    { ignored: /^model\.mtp/ },
  );
}
