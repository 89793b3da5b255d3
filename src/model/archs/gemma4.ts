// Gemma 4 with vision and audio: loads only the text decoder.
import { family, textPart } from "../design/family.ts";
import { gemma4Text } from "./gemma4-text.ts";

export const gemma4 = textPart(gemma4Text);

/** Gemma 4 Unified, whose configurations leave out hidden_size_per_layer_input if there are no per-layer inputs. */
export const gemma4Unified = textPart(
  family({ like: gemma4Text, defaults: { hidden_size_per_layer_input: 0 } }),
);
