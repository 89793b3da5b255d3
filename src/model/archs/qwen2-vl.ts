// Qwen 2 VL, 2.5 VL and 3 VL, which also see: of such a file, the part that reads and writes text. A text's positions
// are the same in all directions.
import { textPart } from "../design/family.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen3 } from "./qwen3.ts";

// Older files have it not wrapped.
export const qwen2Vl = textPart(qwen2, { isBare: true });
export const qwen3Vl = textPart(qwen3, { isBare: true });
