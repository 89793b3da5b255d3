// Gemma 4 with images and sound: of such a file, the part that reads and writes text.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { gemma4Text } from "./gemma4-text.ts";

const Config = z.looseObject({
  text_config: z.looseObject({}),
  vocab_size: z.int().positive().optional(),
});

export function gemma4(config: unknown, weights: Weights): Model {
  const { text_config, vocab_size } = parseConfig(Config, config);
  unwrapText(weights);
  return gemma4Text({ model_type: "gemma4_text", vocab_size, ...text_config }, weights);
}
