// Gemma 4 with vision and audio: loads only the text decoder.
import { family, textPart } from "../design/family.ts";
import { gemma4Text } from "./gemma4-text.ts";

export const gemma4 = textPart(gemma4Text);

/** Configurations without per-layer inputs may leave the key out. */
export const gemma4Unified = textPart(
  family({ like: gemma4Text, defaults: { hidden_size_per_layer_input: 0 } }),
);
