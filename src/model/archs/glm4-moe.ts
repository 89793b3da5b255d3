// GLM 4.5 to 4.7: experts chosen as in DeepSeek V3, and RoPE over a part of each head. Solar Open has the same.
import { z } from "zod";
import { headsOf, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { attentionLayers, preNormDecoder } from "../pre-norm-decoder.ts";
import type { Weights } from "../weights.ts";
import { ExpertsConfig, expertLayers, layersBehind } from "./deepseek-v2.ts";
import { correctedRouting } from "./deepseek-v3.ts";

const Config = ExpertsConfig.extend({
  partial_rotary_factor: z.number().positive().max(1).default(1),
  use_qk_norm: z.boolean().default(false),
});

export function glm4Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const rotary = Math.floor(headsOf(parsed).headDim * parsed.partial_rotary_factor);
  const norms = parsed.use_qk_norm ? "heads" : undefined;
  return preNormDecoder(
    parsed,
    weights,
    attentionLayers(parsed, weights, { rotary, norms }),
    expertLayers(parsed, weights, correctedRouting(parsed)),
    { ignored: layersBehind(parsed) },
  );
}
