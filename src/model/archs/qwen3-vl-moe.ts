// Qwen 3 VL with experts: of such a file, the part that reads and writes text, which is Qwen 3's.
import { textPart } from "../design/family.ts";
import { qwen3Moe } from "./qwen3-moe.ts";

export const qwen3VlMoe = textPart(qwen3Moe);
