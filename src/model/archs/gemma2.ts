// Gemma 2: norms before and behind attention and MLP, soft caps, and a window in every other layer.
import { z } from "zod";
import { multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { rmsNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** null for none. */
  attn_logit_softcapping: z.number().positive().nullable().default(50),
  final_logit_softcapping: z.number().positive().nullable().default(30),
  query_pre_attn_scalar: z.number().positive().optional(),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function gemma2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps, norm_offset } = parsed;
  const { attn_logit_softcapping, final_logit_softcapping: cap } = parsed;
  return transformer(parsed, weights, {
    makeNorm: (name) => rmsNorm(weights, name, dims, eps, norm_offset),
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      mlp: "pre_feedforward_layernorm",
      afterMlp: "post_feedforward_layernorm",
    },
    slides: (layer) => layer % 2 === 0,
    attention: {
      scale: (parsed.query_pre_attn_scalar ?? headsOf(parsed).headDim) ** -0.5,
      softcap: attn_logit_softcapping ?? undefined,
    },
    gating: "geglu",
    afterEmbedding: (h) => multiply(h, dims ** 0.5),
    afterLogits: (logits) => (cap === null ? logits : softCap(logits, cap)),
  });
}
