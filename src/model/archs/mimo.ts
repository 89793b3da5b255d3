// MiMo 7B: Qwen 2 with layers behind the last that predict further tokens, which are not used.
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { QwenConfig, qwenSlides } from "./qwen2.ts";

export function mimo(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(QwenConfig, config);
  weights.leaveOut(/^model\.mtp_layers\./);
  return transformer(parsed, weights, { slides: (layer) => qwenSlides(parsed, layer) });
}
