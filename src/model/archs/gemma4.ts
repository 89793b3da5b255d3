// Gemma 4 with images and sound: of such a file, the part that reads and writes text.
import { family, textPart } from "../design/family.ts";
import { gemma4Text } from "./gemma4-text.ts";

export const gemma4 = textPart(gemma4Text);

/** Without layer inputs: configurations may leave out that there are none. */
export const gemma4Unified = textPart(
  family({ like: gemma4Text, defaults: { hidden_size_per_layer_input: 0 } }),
);
