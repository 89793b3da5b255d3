// GLM 4.5 to 4.7 and Solar Open: DeepSeek V3's routing, and RoPE over a part of each head.
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
