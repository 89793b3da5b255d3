// Qwen 3.5 and its successors, dense and with experts: Qwen 3 Next with its tensors in another order. Of files that
// also see, the part that reads and writes text.
import { integer } from "../config.ts";
import { family, textPart } from "../family.ts";
import { hybridConfig, hybridDesign } from "./qwen3-next.ts";

const text = family({
  config: {
    ...hybridConfig,
    num_experts: integer.default(0),
    num_experts_per_tok: integer.default(0),
    moe_intermediate_size: integer.default(0),
  },
  defaults: { norm_topk_prob: true },
  design: (config, weights) => hybridDesign(config, weights, () => {}),
});

export const qwen35 = textPart(text, { isBare: true });
