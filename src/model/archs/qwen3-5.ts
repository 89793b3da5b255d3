// Qwen 3.5 and its successors, dense and with experts: Qwen 3 Next with its tensors in another order. Of files that
// also see, the part that reads and writes text.
import { z } from "zod";
import { family, textPart } from "../family.ts";
import { hybridConfig, hybridDesign } from "./qwen3-next.ts";

const text = family({
  config: {
    ...hybridConfig,
    num_experts: z.int().default(0),
    num_experts_per_tok: z.int().default(0),
    moe_intermediate_size: z.int().default(0),
    norm_topk_prob: z.boolean().default(true),
  },
  design: (config, weights) => hybridDesign(config, weights, () => {}),
});

export const qwen35 = textPart(text, { isBare: true });
