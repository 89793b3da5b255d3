// Qwen 2 VL, 2.5 VL and 3 VL: loads only the text decoder. For text tokens, the three positions of M-RoPE are equal.
import { textPart } from "../design/family.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen3 } from "./qwen3.ts";

// `isBare` accepts older configurations, which have the decoder's keys at the top level, not in text_config.
export const qwen2Vl = textPart(qwen2, { isBare: true });
export const qwen3Vl = textPart(qwen3, { isBare: true });
