// Mistral 3, Pixtral, LLaVA and others that also see: of such a file, the part that reads and writes text.
import { z } from "zod";
import { LoadError, quoted } from "../../files/load-error.ts";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { llama } from "./llama.ts";
import { ministral3 } from "./ministral3.ts";
import { mistral } from "./mistral.ts";
import { mistral4 } from "./mistral4.ts";

const Config = z.looseObject({
  text_config: z.looseObject({ model_type: z.string().default("mistral") }),
});

const textModels = new Map([
  ["llama", llama],
  ["ministral3", ministral3],
  ["mistral", mistral],
  ["mistral4", mistral4],
]);

export function mistral3(config: unknown, weights: Weights): Model {
  const { text_config } = parseConfig(Config, config);
  const { model_type: type } = text_config;
  const text = textModels.get(type);
  if (!text)
    throw new LoadError(`config.json: text_config.model_type: there is no ${quoted(type)}`);
  unwrapText(weights);
  return text({ num_attention_heads: 32, ...text_config }, weights);
}
