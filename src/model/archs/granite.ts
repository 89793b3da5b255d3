// Granite 3: Llama with a factor on the embedding, on each branch, on the scores and on the logits.
import { z } from "zod";
import { divide } from "../../mlx/ops.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";

export const graniteKeys = {
  embedding_multiplier: z.number().default(1),
  residual_multiplier: z.number().default(1),
  attention_multiplier: z.number().default(1),
  logits_scaling: z.number().default(1),
};

export const granite = family({ config: graniteKeys, design: graniteFactors });

export function graniteFactors(config: ConfigOf<typeof graniteKeys>): Design {
  return {
    embeddingScale: config.embedding_multiplier,
    branchScale: config.residual_multiplier,
    attention: { scale: config.attention_multiplier },
    afterLogits: (logits) => divide(logits, config.logits_scaling),
  };
}
