// Gemma 3 with vision: loads only the text decoder.
import { textPart } from "../design/family.ts";
import { gemma3Text } from "./gemma3-text.ts";

export const gemma3 = textPart(gemma3Text);
