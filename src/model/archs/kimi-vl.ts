// Kimi VL and K2.5: of files that also see, the part that reads and writes text, which is DeepSeek V3's.
import { textPart } from "../design/family.ts";
import { deepseekV3 } from "./deepseek-v3.ts";

export const kimiVl = textPart(deepseekV3);
