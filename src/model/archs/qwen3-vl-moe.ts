// Qwen 3 VL with experts: loads only the text decoder, which is Qwen 3's.
import { family, textPart } from "../design/family.ts";
import { qwen3Moe } from "./qwen3-moe.ts";

// Sets norm_topk_prob, which transformers does not save: routing weights are always normalized.
const text = family({ like: qwen3Moe, defaults: { norm_topk_prob: true } });

export const qwen3VlMoe = textPart(text);
