// Gemma 4 with images and sound: of such a file, the part that reads and writes text.
import { textPart } from "../design/family.ts";
import { gemma4Text } from "./gemma4-text.ts";

export const gemma4 = textPart(gemma4Text);
