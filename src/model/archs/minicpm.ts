// MiniCPM: Llama with factors on the embedding, each branch and the logits.
import { divide } from "../../mlx/ops.ts";
import { count, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const minicpm = family({
  config: {
    scale_emb: real.default(1),
    scale_depth: real.default(1),
    dim_model_base: count.default(1),
  },
  design: ({ hidden_size, num_hidden_layers, scale_emb, scale_depth, dim_model_base }) => ({
    embeddingScale: scale_emb,
    branchScale: scale_depth / Math.sqrt(num_hidden_layers),
    afterLogits: (logits) => divide(logits, hidden_size / dim_model_base),
  }),
});
