// Qwen 3.5 and its successors, dense and with experts: Qwen 3 Next with its tensors in another order. Of files that
// also see, the part that reads and writes text.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import { splitExperts } from "../experts.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { Config, hybridDecoder } from "./qwen3-next.ts";

const TextConfig = Config.extend({
  num_experts: z.int().default(0),
  num_experts_per_tok: z.int().default(0),
  moe_intermediate_size: z.int().default(0),
  norm_topk_prob: z.boolean().default(true),
});

const Wrapped = z.looseObject({ text_config: z.looseObject({}) });

export function qwen35(config: unknown, weights: Weights): Model {
  const wrapped = Wrapped.safeParse(config);
  const text = wrapped.success ? { model_type: "qwen3_5", ...wrapped.data.text_config } : config;
  const parsed = parseConfig(TextConfig, text);
  unwrapText(weights);
  for (let layer = 0; layer < parsed.num_hidden_layers; layer++) {
    const mlp = `model.layers.${layer}.mlp`;
    if (!weights.has(`${mlp}.experts.gate_up_proj`)) continue;
    splitExperts(weights, `${mlp}.experts.gate_up_proj`, `${mlp}.switch_mlp`);
    weights.rename({ [`${mlp}.experts.down_proj`]: `${mlp}.switch_mlp.down_proj.weight` });
  }
  return hybridDecoder(parsed, weights, () => {});
}
