// MiniMax M2: experts in every layer, query and key norms that span all heads, and RoPE over a part of each head.
import { z } from "zod";
import { count, flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";

export const minimax = family({
  config: {
    ...requiredExpertKeys,
    rotary_dim: count.nullish(),
    use_qk_norm: flag.default(true),
    scoring_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
  },
  keys: { n_routed_experts: "num_local_experts" },
  design: (config) => ({
    rotaryDims: config.rotary_dim,
    normsAllHeads: config.use_qk_norm,
    experts: expertsOf(config, {
      scores: config.scoring_func,
      correction: "e_score_correction_bias",
      isNormalized: true,
    }),
  }),
});
