// DeepSeek V3, R1 and Kimi K2: sigmoid routing with a correction, limited to the expert groups whose two best scores
// have the highest sum.
import { family } from "../design/family.ts";
import { correctedScores, expertsOf } from "../layers/expert-design.ts";
import { deepseekV2 } from "./deepseek-v2.ts";

export const deepseekV3 = family({
  like: deepseekV2,
  design: (config) => ({ experts: expertsOf(config, correctedScores) }),
});
