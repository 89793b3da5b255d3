// Qwen 3 VL with experts: of such a file, the part that reads and writes text, which is Qwen 3's.
import { family, textPart } from "../design/family.ts";
import { qwen3Moe } from "./qwen3-moe.ts";

// transformers saves no norm_topk_prob: its shares always add up to 1.
const text = family({ like: qwen3Moe, defaults: { norm_topk_prob: true } });

export const qwen3VlMoe = textPart(text);
