// Gemma 3 with images: of such a file, the part that reads and writes text.
import { textPart } from "../design/family.ts";
import { gemma3Text } from "./gemma3-text.ts";

export const gemma3 = textPart(gemma3Text);
