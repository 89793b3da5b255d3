// DeepSeek MoE, before V2: Llama's attention, and experts chosen by softmax beside some that all tokens go through.
import { z } from "zod";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";

export const deepseek = family({
  config: { ...expertKeys, scoring_func: z.literal("softmax").default("softmax") },
  defaults: { norm_topk_prob: false },
  design: (config) => ({ experts: expertsOf(config, { groups: undefined, scale: 1 }) }),
});
