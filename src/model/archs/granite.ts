// Granite 3: Llama with factors on the embedding, each branch, the scores and the logits.
import { divide } from "../../mlx/ops.ts";
import { real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const granite = family({
  config: {
    embedding_multiplier: real.default(1),
    residual_multiplier: real.default(1),
    attention_multiplier: real.default(1),
    logits_scaling: real.default(1),
  },
  design: (config) => ({
    embeddingScale: config.embedding_multiplier,
    branchScale: config.residual_multiplier,
    attention: { scale: config.attention_multiplier },
    afterLogits: (logits) => divide(logits, config.logits_scaling),
  }),
});
