// dots.llm1: DeepSeek V3's routing, and norms on queries and keys.
import { family } from "../design/family.ts";
import { correctedScores, expertKeys, expertsOf } from "../layers/expert-design.ts";

export const dots1 = family({
  config: expertKeys,
  design: (config) => ({
    headNorms: ["q_norm", "k_norm"],
    experts: expertsOf(config, correctedScores),
  }),
});
