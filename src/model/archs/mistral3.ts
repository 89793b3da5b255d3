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

const sevenBillion = { hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32 };

/** With what configurations leave out where it is as usual. */
const textModels = new Map([
  ["llama", { text: llama, usual: { ...sevenBillion, intermediate_size: 11_008 } }],
  ["ministral3", { text: ministral3, usual: {} }],
  ["mistral", { text: mistral, usual: { ...sevenBillion, intermediate_size: 14_336 } }],
  ["mistral4", { text: mistral4, usual: {} }],
]);

export function mistral3(config: unknown, weights: Weights): Model {
  const { text_config } = parseConfig(Config, config);
  const { model_type: type } = text_config;
  const found = textModels.get(type);
  if (!found)
    throw new LoadError(`config.json: text_config.model_type: there is no ${quoted(type)}`);
  unwrapText(weights);
  return found.text({ ...found.usual, ...text_config }, weights);
}
