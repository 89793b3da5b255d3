// Qwen 3 VL with experts: of such a file, the part that reads and writes text, which is Qwen 3's.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import { transposeExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { MoeConfig, qwen3MoeDecoder } from "./qwen3-moe.ts";

const Config = z.looseObject({ text_config: z.looseObject({}) });

export function qwen3VlMoe(config: unknown, weights: Weights): Model {
  const { text_config } = parseConfig(Config, config);
  const parsed = parseConfig(MoeConfig, { model_type: "qwen3_moe", ...text_config });
  unwrapText(weights);
  for (let layer = 0; weights.has(`model.layers.${layer}.mlp.gate.weight`); layer++) {
    const mlp = `model.layers.${layer}.mlp`;
    transposeExperts(weights, `${mlp}.experts`, `${mlp}.switch_mlp`);
  }
  return qwen3MoeDecoder(parsed, weights, { ignored: /^(model\.)?visual\./ });
}
