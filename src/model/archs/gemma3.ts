// Gemma 3 with images: of such a file, the part that reads and writes text.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { gemma3Decoder } from "./gemma3-text.ts";

const Config = z.looseObject({
  text_config: z.looseObject({}),
  vocab_size: z.int().positive().optional(),
});

export function gemma3(config: unknown, weights: Weights): Model {
  const { text_config, vocab_size } = parseConfig(Config, config);
  const text = { model_type: "gemma3_text", ...text_config };
  return gemma3Decoder(vocab_size === undefined ? text : { ...text, vocab_size }, weights, {
    prefix: "language_model.",
    ignored: /^(vision_tower|multi_modal_projector)\./,
  });
}
