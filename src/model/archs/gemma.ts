// Gemma: Llama with the embedding scaled, GELU, and norms that are stored as their distance from 1.
import { z } from "zod";
import { multiply } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function gemma(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps, norm_offset } = parsed;
  return transformer({ ...parsed, tie_word_embeddings: true }, weights, {
    makeNorm: (name) => rmsNorm(weights, name, dims, eps, norm_offset),
    // Some configurations say "gelu" and mean this.
    gating: "geglu",
    afterEmbedding: (h) => multiply(h, dims ** 0.5),
  });
}
