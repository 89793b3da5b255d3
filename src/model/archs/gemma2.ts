// Gemma 2: norms before and after attention and MLP, soft caps, and a window in every other layer.
import { headsOf, positive } from "../checkpoint/config.ts";
import { normsAround } from "../design/design.ts";
import { family } from "../design/family.ts";

export const gemma2 = family({
  config: {
    /** Soft cap of attention's scores; null for none. */
    attn_logit_softcapping: positive.nullable().default(50),
    final_logit_softcapping: positive.nullable().default(30),
    query_pre_attn_scalar: positive.optional(),
  },
  design: (config) => ({
    norms: normsAround,
    normOffset: 1,
    slides: (layer) => layer % 2 === 0,
    attention: {
      scale: (config.query_pre_attn_scalar ?? headsOf(config).headDim) ** -0.5,
      softcap: config.attn_logit_softcapping ?? undefined,
    },
    gating: "geglu",
    embeddingScale: config.hidden_size ** 0.5,
    logitCap: config.final_logit_softcapping,
  }),
});
