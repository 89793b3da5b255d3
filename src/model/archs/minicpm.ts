// MiniCPM: Llama with a factor on the embedding, on each branch and on the logits.
import { divide } from "../../mlx/ops.ts";
import { count, real } from "../config.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";

export const minicpmKeys = {
  scale_emb: real.default(1),
  scale_depth: real.default(1),
  dim_model_base: count.default(1),
};

export const minicpm = family({ config: minicpmKeys, design: minicpmFactors });

export function minicpmFactors(config: ConfigOf<typeof minicpmKeys>): Design {
  return {
    embeddingScale: config.scale_emb,
    branchScale: config.scale_depth / Math.sqrt(config.num_hidden_layers),
    afterLogits: (logits) => divide(logits, config.hidden_size / config.dim_model_base),
  };
}
