// Command R: attention and MLP in parallel after one layer norm; neighbouring features rotate together.
import { flag, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { plainLayerNorm } from "../layers/layers.ts";

export const cohere = family({
  config: { logit_scale: real.default(0.0625), use_qk_norm: flag.default(false) },
  defaults: { rms_norm_eps: 1e-5, rope_theta: 8_000_000 },
  // Reads the context length from model_max_length: max_position_embeddings, if also given, is not the trained one.
  keys: { rms_norm_eps: "layer_norm_eps", max_position_embeddings: "model_max_length" },
  design: ({ logit_scale, use_qk_norm, rms_norm_eps }) => ({
    config: { tie_word_embeddings: true },
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    rotatesNeighbours: true,
    headwiseNorms: use_qk_norm
      ? { query: "q_norm.weight", key: "k_norm.weight", norm: plainLayerNorm(rms_norm_eps) }
      : undefined,
    logitScale: logit_scale,
  }),
});
