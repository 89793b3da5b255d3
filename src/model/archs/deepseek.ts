// DeepSeek MoE, before V2: Llama's attention, softmax routing, and shared experts.
import { z } from "zod";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

export const deepseek = family({
  config: { ...expertKeys, scoring_func: z.literal("softmax").default("softmax") },
  defaults: { norm_topk_prob: false },
  design: (config) => ({ experts: expertsOf(config, { groups: undefined, scale: 1 }) }),
});
