// Qwen 2 VL, 2.5 VL and 3 VL, which also see: of such a file, the part that reads and writes text. A text's positions
// are the same in all directions.
import { z } from "zod";
import { unwrapText } from "../decoder.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen3 } from "./qwen3.ts";

const Wrapped = z.looseObject({
  tie_word_embeddings: z.boolean().optional(),
  text_config: z.looseObject({}),
});

export function qwen2Vl(config: unknown, weights: Weights): Model {
  unwrapText(weights);
  return qwen2(textConfig(config), weights);
}

export function qwen3Vl(config: unknown, weights: Weights): Model {
  unwrapText(weights);
  return qwen3(textConfig(config), weights);
}

/** Older files have it not wrapped. */
function textConfig(config: unknown): unknown {
  const { success, data } = Wrapped.safeParse(config);
  if (!success) return config;
  const { tie_word_embeddings, text_config } = data;
  return { model_type: "text", tie_word_embeddings, ...text_config };
}
