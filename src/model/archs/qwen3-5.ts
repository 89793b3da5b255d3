// Qwen 3.5 and its successors, dense and with experts: Qwen 3 Next with its tensors in another order. Loads only the
// text decoder of multimodal files.
import { integer } from "../checkpoint/config.ts";
import { family, textPart } from "../design/family.ts";
import { qwen3Next } from "./qwen3-next.ts";

const text = family({
  like: qwen3Next,
  config: { num_experts_per_tok: integer },
  defaults: {
    n_routed_experts: 0,
    num_experts_per_tok: 0,
    moe_intermediate_size: 0,
    norm_topk_prob: true,
  },
});

export const qwen35 = textPart(text, { isBare: true });
