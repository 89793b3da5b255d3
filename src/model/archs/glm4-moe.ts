// GLM 4.5 to 4.7: experts chosen as in DeepSeek V3, and RoPE over a part of each head. Solar Open has the same.
import { flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { correctedScores, expertKeys, expertsOf } from "../layers/expert-design.ts";

export const glm4Moe = family({
  config: { ...expertKeys, use_qk_norm: flag.default(false) },
  design: (config) => ({
    headNorms: config.use_qk_norm ? ["q_norm", "k_norm"] : undefined,
    experts: expertsOf(config, correctedScores),
    hasLayersBehind: true,
  }),
});
