// Mistral 3, Pixtral, LLaVA and other vision models: loads only the text decoder.
import { LoadError, quoted } from "../../files/load-error.ts";
import { type Architecture, TEXT, textPart } from "../design/family.ts";
import { llama } from "./llama.ts";
import { ministral3 } from "./ministral3.ts";
import { mistral } from "./mistral.ts";
import { mistral4 } from "./mistral4.ts";

const sevenBillion = { hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32 };

/** Text decoders by model_type. `usual`: values of keys that their configurations leave out. */
const textModels = new Map<string, { text: Architecture; usual: object }>([
  ["llama", { text: llama, usual: { ...sevenBillion, intermediate_size: 11_008 } }],
  ["ministral3", { text: ministral3, usual: {} }],
  ["mistral", { text: mistral, usual: { ...sevenBillion, intermediate_size: 14_336 } }],
  ["mistral4", { text: mistral4, usual: {} }],
]);

export const mistral3 = textPart((config, weights) => {
  const { model_type: type } = config as { model_type: string };
  const found = textModels.get(type === TEXT ? "mistral" : type);
  if (!found)
    throw new LoadError(`config.json: text_config.model_type: there is no ${quoted(type)}`);
  return found.text({ ...found.usual, ...Object(config) }, weights);
});
