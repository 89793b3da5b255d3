// GLM 4.5 to 4.7: experts chosen as in DeepSeek V3, and RoPE over a part of each head. Solar Open has the same.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers, layersBehind } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

const Config = ExpertsConfig.extend({ use_qk_norm: z.boolean().default(false) });

export function glm4Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  return transformer(parsed, weights, {
    headNorms: parsed.use_qk_norm ? ["q_norm", "k_norm"] : undefined,
    mlp: expertLayers(parsed, weights, correctedRouting(parsed)),
    ignored: layersBehind(parsed),
  });
}
