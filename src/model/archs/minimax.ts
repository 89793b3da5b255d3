// MiniMax M2: experts in every layer, norms over all of the queries and keys, and RoPE over a part of each head.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { normedProjection } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import { transformer } from "../transformer.ts";
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
  const rope = makeRope(weights, ropeOptions(parsed, parsed.rotary_dim));
  weights.renameParts({ ".block_sparse_moe.": ".mlp." });
  return transformer(parsed, weights, {
    rope: () => rope,
    parts: (name, sizes) =>
      parsed.use_qk_norm
        ? { project: normedProjection(weights, name, sizes, parsed.rms_norm_eps) }
        : {},
    mlp: (name) => {
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
    ignored: /^model\.mtp/,
  });
}
