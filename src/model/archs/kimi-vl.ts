// Kimi VL and K2.5: of files that also see, the part that reads and writes text, which is DeepSeek V3's.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { DeepseekConfig, deepseekDecoder, LATENT_EPS } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

const Config = z.looseObject({ text_config: z.looseObject({}) });

export function kimiVl(config: unknown, weights: Weights): Model {
  const { text_config } = parseConfig(Config, config);
  const parsed = parseConfig(DeepseekConfig, { model_type: "deepseek_v3", ...text_config });
  unwrapText(weights);
  const routing = correctedRouting(parsed);
  const ignored = /^(vision_tower|vision_model|multi_modal_projector|mm_projector)\./;
  return deepseekDecoder(parsed, weights, LATENT_EPS, routing, ignored);
}
