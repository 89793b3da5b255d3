// Kimi VL and K2.5: loads only the text decoder, which is DeepSeek V3's.
import { textPart } from "../design/family.ts";
import { deepseekV3 } from "./deepseek-v3.ts";

export const kimiVl = textPart(deepseekV3);
