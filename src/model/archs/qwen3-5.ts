// Qwen 3.5 and its successors, dense and with experts: Qwen 3 Next with its tensors in another order. Of files that
// also see, the part that reads and writes text.
import { z } from "zod";
import { runsOf } from "../arrangement.ts";
import { parseConfig } from "../config.ts";
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
  weights.rename({
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
  });
  for (let layer = 0; layer < parsed.num_hidden_layers; layer++) {
    arrangeExperts(weights, `model.layers.${layer}.mlp`);
  }
  return hybridDecoder(parsed, weights, () => {});
}

/** The authors' files have all gates and ups in one tensor, (experts, 2 hidden, dims). */
function arrangeExperts(weights: Weights, name: string): void {
  const source = `${name}.experts.gate_up_proj`;
  if (!weights.has(source)) return;
  for (const [half, part] of ["gate_proj", "up_proj"].entries()) {
    weights.arrange([source], ([stored]) => {
      const [experts, both, dims] = stored!.shape as [number, number, number];
      const runs = Array.from({ length: experts }, (_, i) => {
        return { first: i * both + (half * both) / 2, count: both / 2 };
      });
      return runsOf(`${name}.switch_mlp.${part}.weight`, stored!, {
        rows: experts * both,
        runs,
        shape: [experts, both / 2, dims],
      });
    });
  }
  weights.rename({ [`${name}.experts.down_proj`]: `${name}.switch_mlp.down_proj.weight` });
}
